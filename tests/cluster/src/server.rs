//! The servers of a cluster: how they are started, and control over them while tests run.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    error::{Error, LogTail},
    keeper::Keeper,
    process::Process,
};

/// One server of a cluster: etcd, the API server or the controller manager.
///
/// After [`Server::restart`] ask [`Cluster::wait_ready`](crate::Cluster::wait_ready), before relying on it.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    command: Command,
    log: PathBuf,
    /// Where it listens, if that is a port.
    port: Option<u16>,
    keeper: Arc<Keeper>,
    process: Mutex<Arc<Process>>,
}

impl Server {
    pub(crate) fn start(
        keeper: &Arc<Keeper>,
        directory: &Path,
        name: &'static str,
        command: Command,
        port: Option<u16>,
    ) -> Result<Self, Error> {
        let log = directory.join(format!("{name}.log"));
        let process = Process::spawn(keeper, &command, name, &log)?;
        Ok(Self { name, command, log, port, keeper: Arc::clone(keeper), process: Mutex::new(process.into()) })
    }

    /// The binary's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The process that runs now, or ran last.
    pub fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process.lock())
    }

    /// Stops it in order (SIGTERM) and waits for its end.
    pub async fn stop(&self) -> Result<(), Error> {
        self.process().stop().await.map(drop)
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub async fn kill(&self) -> Result<(), Error> {
        self.process().kill().await.map(drop)
    }

    /// Freezes it (SIGSTOP): connections stay open, and nothing is answered.
    pub fn pause(&self) -> Result<(), Error> {
        self.process().pause()
    }

    /// Lets it go on after [`Server::pause`].
    pub fn resume(&self) -> Result<(), Error> {
        self.process().resume()
    }

    /// Starts it again, with the same port and data; stops it first if it runs.
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop().await?;
        let process = Process::spawn(&self.keeper, &self.command, self.name, &self.log)?;
        *self.process.lock() = process.into();
        Ok(())
    }

    /// An error if it has ended, which says why as far as its log does.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Some(status) = self.process().exit_status() else { return Ok(()) };
        let server = self.name.to_owned();
        let log = self.log_tail();
        Err(match self.port {
            Some(port) if log.mentions("address already in use") => Error::PortTaken { server, port, log },
            _ => Error::Exited { server, status, log },
        })
    }

    pub(crate) fn log_tail(&self) -> LogTail {
        LogTail::of(&self.log)
    }
}

/// etcd on Unix sockets, so that it has no port which could be taken, and no other cluster can be mistaken for it.
pub(crate) fn etcd(binary: &Path, directory: &Path) -> Command {
    // It wants addresses in the form of host and port, also where they are files, here in its own directory.
    let (clients, peers) = ("unix://clients:1", "unix://peers:1");
    let mut command = Command::new(binary);
    command
        .current_dir(directory)
        .arg("--name=tests")
        .arg(format!("--data-dir={}", directory.join("etcd").display()))
        .arg(format!("--listen-client-urls={clients}"))
        .arg(format!("--advertise-client-urls={clients}"))
        .arg(format!("--listen-peer-urls={peers}"))
        .arg(format!("--initial-advertise-peer-urls={peers}"))
        .arg(format!("--initial-cluster=tests={peers}"))
        // Data outlives a killed process all the same; only the machine's crash would lose it.
        .arg("--unsafe-no-fsync")
        .arg("--log-level=warn");
    command
}

/// Where etcd's clients connect.
pub(crate) fn etcd_socket(directory: &Path) -> PathBuf {
    directory.join("clients:1")
}

/// The API server, on 127.0.0.1 with RBAC. `extra` arguments come last, and so override.
pub(crate) fn api_server(binary: &Path, directory: &Path, port: u16, extra: &[String]) -> Command {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut command = Command::new(binary);
    command
        .arg(format!("--etcd-servers=unix://{}", etcd_socket(directory).display()))
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--secure-port={port}"))
        .arg(format!("--tls-cert-file={}", file("server.crt")))
        .arg(format!("--tls-private-key-file={}", file("server.key")))
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg("--authorization-mode=RBAC")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-signing-key-file={}", file("service-accounts.key")))
        .arg(format!("--service-account-key-file={}", file("service-accounts.pub")))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        // There are no nodes which could reach it, and 127.0.0.1 is refused as an endpoint.
        .arg("--endpoint-reconciler-type=none")
        .args(extra);
    command
}

/// The controller manager with every controller, without leader election and without a port.
pub(crate) fn controller_manager(binary: &Path, directory: &Path, kubeconfig: &Path) -> Command {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut command = Command::new(binary);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--root-ca-file={}", file("ca.crt")))
        .arg(format!("--service-account-private-key-file={}", file("service-accounts.key")))
        .arg("--use-service-account-credentials=true")
        // It makes an account and a token for each controller, and would wait for most of ten seconds meanwhile.
        .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
        .arg("--leader-elect=false")
        .arg("--secure-port=0");
    command
}
