//! Who may reach the cluster, and how: kubeconfigs and client configurations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::ByteString;
use kube::{
    Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    certs::Identity,
    error::{Doing, Error},
};

/// The address of a cluster and the administrator's way in.
#[derive(Debug)]
pub(crate) struct Access {
    directory: PathBuf,
    /// The `cluster` part of a kubeconfig.
    endpoint: Value,
    /// The administrator's client configuration.
    pub(crate) admin: Config,
    /// The administrator's kubeconfig.
    pub(crate) kubeconfig: PathBuf,
}

impl Access {
    /// To a cluster of our own.
    pub(crate) async fn with_certificate(
        directory: &Path,
        url: &str,
        authority: String,
        admin: Identity,
    ) -> Result<Self, Error> {
        let endpoint = endpoint(url, authority);
        let user = user_with_certificate(admin);
        Self::new(directory, "admin", endpoint, user).await
    }

    /// Through a proxy, whose address is `url`; `name` distinguishes its kubeconfig.
    pub(crate) async fn with_token(
        directory: &Path,
        name: &str,
        url: &str,
        authority: String,
        token: &str,
    ) -> Result<Self, Error> {
        Self::new(directory, name, endpoint(url, authority), json!({ "token": token })).await
    }

    /// To the existing cluster that the current context of a kubeconfig names.
    pub(crate) async fn from_kubeconfig(directory: &Path, kubeconfig: Kubeconfig) -> Result<Self, Error> {
        let context = kubeconfig.current_context.unwrap_or_default();
        let context = kubeconfig.contexts.into_iter().find(|named| named.name == context);
        let context = context.and_then(|named| named.context).unwrap_or_default();
        let endpoint = kubeconfig.clusters.into_iter().find(|named| named.name == context.cluster);
        let user = kubeconfig.auth_infos.into_iter().find(|named| Some(&named.name) == context.user.as_ref());
        Self::new(
            directory,
            "admin",
            json!(endpoint.and_then(|named| named.cluster)),
            json!(user.and_then(|named| named.auth_info)),
        )
        .await
    }

    async fn new(directory: &Path, name: &str, endpoint: Value, user: Value) -> Result<Self, Error> {
        let kubeconfig = write_kubeconfig(directory, name, &endpoint, user)?;
        let read = Kubeconfig::read_from(&kubeconfig)?;
        let admin = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        Ok(Self { directory: directory.to_owned(), endpoint, admin, kubeconfig })
    }

    /// The administrator's configuration with a token instead of the administrator's certificate.
    pub(crate) fn config_with_token(&self, token: &str) -> Result<Config, Error> {
        let mut config = self.admin.clone();
        config.auth_info = serde_json::from_value(json!({ "token": token }))
            .map_err(std::io::Error::from)
            .doing(|| "using a token")?;
        Ok(config)
    }

    /// The administrator's configuration, acting as another user.
    pub(crate) fn config_as(&self, user: &str, groups: &[&str]) -> Config {
        let mut config = self.admin.clone();
        config.auth_info = AuthInfo {
            impersonate: Some(user.to_owned()),
            impersonate_groups: Some(groups.iter().map(|&group| group.to_owned()).collect()),
            ..config.auth_info
        };
        config
    }

    /// Writes a kubeconfig that logs in with `token`.
    pub(crate) fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf, Error> {
        write_kubeconfig(&self.directory, name, &self.endpoint, json!({ "token": token }))
    }
}

/// The `cluster` part of a kubeconfig; `authority` is PEM.
pub(crate) fn endpoint(url: &str, authority: String) -> Value {
    json!({ "server": url, "certificate-authority-data": ByteString(authority.into_bytes()) })
}

/// The `user` part of a kubeconfig.
pub(crate) fn user_with_certificate(identity: Identity) -> Value {
    json!({
        "client-certificate-data": ByteString(identity.certificate.into_bytes()),
        "client-key-data": ByteString(identity.key.into_bytes()),
    })
}

/// Writes `NAME.kubeconfig`, as JSON, which is YAML too.
pub(crate) fn write_kubeconfig(
    directory: &Path,
    name: &str,
    endpoint: &Value,
    user: Value,
) -> Result<PathBuf, Error> {
    let path = directory.join(format!("{name}.kubeconfig"));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "tests", "cluster": endpoint }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": "tests", "context": { "cluster": "tests", "user": name } }],
        "current-context": "tests",
    });
    fs::write(&path, kubeconfig.to_string()).doing(|| format!("writing {}", path.display()))?;
    Ok(path)
}
