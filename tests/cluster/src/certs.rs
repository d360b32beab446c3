//! Keys and certificates, made in this process for one cluster and gone with it.

use std::{fmt, fs, net::IpAddr, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::error::{Doing, Error};

/// The certificate authority that signs the servers and the clients of one cluster.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate and its private key, both as PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "lessor-cluster");
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// The authority's own certificate, as PEM.
    pub(crate) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server on 127.0.0.1, also under the names that pods would use.
    pub(crate) fn server(&self) -> Result<Identity, Error> {
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut params = CertificateParams::new(names.map(str::to_owned).to_vec())?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::from([127, 0, 0, 1])));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A client certificate: the API server takes the common name for the user, the organization for its group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity, Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Writes what the servers read from files into `directory`: `ca.crt`, `server.crt`, `server.key`, and
/// `service-accounts.key` and `.pub`, with which tokens are signed and checked.
pub(crate) fn write_server_files(authority: &Authority, directory: &Path) -> Result<(), Error> {
    let server = authority.server()?;
    let service_accounts = KeyPair::generate()?;
    for (name, content) in [
        ("ca.crt", authority.certificate()),
        ("server.crt", server.certificate),
        ("server.key", server.key),
        ("service-accounts.key", service_accounts.serialize_pem()),
        ("service-accounts.pub", service_accounts.public_key_pem()),
    ] {
        fs::write(directory.join(name), content).doing(|| format!("writing {name}"))?;
    }
    Ok(())
}
