//! One cluster: started, reached, and gone at the end.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, ServiceAccount},
        rbac::v1::{ClusterRoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::version::Info,
};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::Kubeconfig,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    net::UnixStream,
    sync::OnceCell,
    time::{Instant, sleep, timeout},
};

use crate::{
    access::{Access, user_with_certificate, write_kubeconfig},
    audit::{self, AuditLog},
    certs::{self, Authority},
    error::{Doing, Error, LogTail},
    keeper::Keeper,
    ports::free_port,
    process::Process,
    proxy::{self, Proxy},
    server::{self, Server},
    tools::Tool,
};

/// How long a server may take until it is ready. An idle machine needs three seconds; two cores that compile or run
/// several clusters need many times that.
const PATIENCE: Duration = Duration::from_secs(90);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A Kubernetes cluster for tests: etcd and an API server on 127.0.0.1, without nodes.
///
/// Whatever happens to the test process, its servers end with it. Dropping the cluster ends them at once.
#[derive(Debug)]
pub struct Cluster {
    keeper: Arc<Keeper>,
    directory: PathBuf,
    access: Access,
    authority: Authority,
    /// `None`: the cluster isn't ours.
    servers: Option<Servers>,
    processes: AtomicU32,
}

#[derive(Debug)]
struct Servers {
    etcd: Server,
    api_server: Server,
    controller_manager: Option<Server>,
    audit: Option<AuditLog>,
}

/// What a cluster shall be like; made by [`Cluster::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    controller_manager: bool,
    audit: Option<audit::Policy>,
    api_server_args: Vec<String>,
}

impl Builder {
    /// Whether kube-controller-manager runs: without it no namespace is ever emptied, no owned object collected, and
    /// the cluster roles `view`, `edit` and `admin`, which aggregate others, are empty. Default: no.
    pub fn controller_manager(mut self, run: bool) -> Self {
        self.controller_manager = run;
        self
    }

    /// Whether the API server writes an audit log. Default: yes.
    pub fn audit(mut self, keep: bool) -> Self {
        self.audit = if keep { self.audit.or_else(|| Some(audit::Policy::default())) } else { None };
        self
    }

    /// How much the audit log keeps of requests for `resource` (a plural, or `*`) of an API `group` (`""` for core).
    /// The last rule for a resource counts. Default: everything of `lessor.dev`, and of all else who asked what.
    pub fn audit_level(mut self, group: &str, resource: &str, level: audit::Level) -> Self {
        if let Some(policy) = &mut self.audit {
            policy.add(group, resource, level);
        }
        self
    }

    /// More arguments for kube-apiserver, after those of this crate.
    pub fn api_server_args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.api_server_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts the cluster and waits until it is ready.
    ///
    /// With `USE_EXISTING_CLUSTER=true` nothing is started, and the cluster of `KUBECONFIG` is used.
    pub async fn start(self) -> Result<Cluster, Error> {
        if env::var("USE_EXISTING_CLUSTER").is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
            return Cluster::existing().await;
        }
        let mut tries = 3;
        loop {
            match self.start_once().await {
                // Another process took the port between its choice and its use.
                Err(Error::PortTaken { .. }) if tries > 1 => tries -= 1,
                result => return result,
            }
        }
    }

    async fn start_once(&self) -> Result<Cluster, Error> {
        let etcd = Tool::Etcd.path().await?;
        let api_server = Tool::KubeApiserver.path().await?;
        let (directory, keeper) = directory()?;

        let authority = Authority::new()?;
        certs::write_server_files(&authority, &directory)?;
        let etcd = Server::start(&keeper, &directory, "etcd", server::etcd(&etcd, &directory), None)?;

        let port = free_port()?;
        let mut args = Vec::new();
        let mut audit = None;
        if let Some(policy) = &self.audit {
            let (file, log) = (directory.join("audit-policy.json"), directory.join("audit.log"));
            fs::write(&file, policy.file()).doing(|| "writing the audit policy")?;
            args = audit::arguments(&file, &log);
            audit = Some(AuditLog::new(log));
        }
        args.extend(self.api_server_args.iter().cloned());
        etcd_ready(&etcd, &directory).await?;
        let api_server = Server::start(
            &keeper,
            &directory,
            "kube-apiserver",
            server::api_server(&api_server, &directory, port, &args),
            Some(port),
        )?;

        let url = format!("https://127.0.0.1:{port}");
        let admin = authority.client("admin", Some("system:masters"))?;
        let access = Access::with_certificate(&directory, &url, authority.certificate(), admin).await?;
        let servers = Servers { etcd, api_server, controller_manager: None, audit };
        let processes = AtomicU32::new(0);
        let mut cluster = Cluster { keeper, directory, access, authority, servers: Some(servers), processes };
        cluster.wait_ready().await?;
        if self.controller_manager {
            cluster.start_controller_manager(&url).await?;
        }
        Ok(cluster)
    }
}

impl Cluster {
    /// Starts a cluster with the defaults of [`Cluster::builder`].
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Says what the cluster shall be like.
    pub fn builder() -> Builder {
        Builder {
            controller_manager: false,
            audit: Some(audit::Policy::default()),
            api_server_args: Vec::new(),
        }
    }

    /// The cluster that all tests of this process share, started by the first who asks.
    ///
    /// It belongs to no test's runtime, and ends with the process.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Uses the existing cluster that this kubeconfig and its current context name, and starts nothing.
    pub async fn with_kubeconfig(path: &Path) -> Result<Self, Error> {
        Self::of(Kubeconfig::read_from(path)?).await
    }

    async fn existing() -> Result<Self, Error> {
        Self::of(Kubeconfig::from_env()?.map_or_else(Kubeconfig::read, Ok)?).await
    }

    async fn of(kubeconfig: Kubeconfig) -> Result<Self, Error> {
        let (directory, keeper) = directory()?;
        let authority = Authority::new()?;
        let access = Access::from_kubeconfig(&directory, kubeconfig).await?;
        let cluster =
            Self { keeper, directory, access, authority, servers: None, processes: AtomicU32::new(0) };
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    async fn start_controller_manager(&mut self, url: &str) -> Result<(), Error> {
        let binary = Tool::KubeControllerManager.path().await?;
        let identity = self.authority.client("system:kube-controller-manager", None)?;
        let kubeconfig = write_kubeconfig(
            &self.directory,
            "kube-controller-manager",
            &crate::access::endpoint(url, self.authority.certificate()),
            user_with_certificate(identity),
        )?;
        let command = server::controller_manager(&binary, &self.directory, &kubeconfig);
        let name = "kube-controller-manager";
        let server = Server::start(&self.keeper, &self.directory, name, command, None)?;
        if let Some(servers) = &mut self.servers {
            servers.controller_manager = Some(server);
        }
        Ok(())
    }

    /// Whether this crate started it, and so can control it and ends it.
    pub fn is_ours(&self) -> bool {
        self.servers.is_some()
    }

    /// An administrator's client. Each call makes a new one, which belongs to the async runtime of the caller.
    pub fn client(&self) -> Result<Client, Error> {
        Client::try_from(self.client_config()).doing(|| "making a client")
    }

    /// The administrator's client configuration, to be changed before a client is made of it.
    pub fn client_config(&self) -> Config {
        self.access.admin.clone()
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.access.kubeconfig
    }

    /// Where the API server listens.
    pub fn server_url(&self) -> String {
        self.access.admin.cluster_url.to_string()
    }

    /// The directory of this cluster, which is removed at the end: logs, kubeconfigs, etcd's data.
    ///
    /// With `LESSOR_CLUSTER_KEEP=1` in the environment it stays, for a look at what happened.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the API server says about itself.
    pub async fn version(&self) -> Result<Info, Error> {
        self.client()?.apiserver_version().await.doing(|| "asking for the version")
    }

    /// A client that is the service account `name`, with a token from the API server. The account is made if missing.
    pub async fn service_account_client(&self, namespace: &str, name: &str) -> Result<Client, Error> {
        let token = self.service_account_token(namespace, name).await?;
        Client::try_from(self.access.config_with_token(&token)?).doing(|| "making a client")
    }

    /// A kubeconfig that logs in as the service account `name`. The account is made if missing.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf, Error> {
        let token = self.service_account_token(namespace, name).await?;
        self.access.kubeconfig_with_token(&format!("{namespace}.{name}"), &token)
    }

    /// A token of the service account `name`, good for a day. The account is made if missing; its namespace isn't.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> Result<String, Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
            ..Default::default()
        };
        create_if_missing(&accounts, &account)
            .await
            .doing(|| format!("making the service account {namespace}/{name}"))?;
        let day = 24 * 60 * 60;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(day), ..Default::default() }),
            ..Default::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .doing(|| format!("asking for a token of {namespace}/{name}"))?;
        Ok(answer.status.and_then(|status| status.token).unwrap_or_default())
    }

    /// A client that acts as `user` in `groups`, by impersonation: nothing but what RBAC grants to these.
    pub fn user_client(&self, user: &str, groups: &[&str]) -> Result<Client, Error> {
        Client::try_from(self.access.config_as(user, groups)).doing(|| "making a client")
    }

    /// The API server, to be stopped, killed, paused and restarted.
    pub fn api_server(&self) -> Result<&Server, Error> {
        self.servers
            .as_ref()
            .map(|servers| &servers.api_server)
            .ok_or(Error::NotOurs("control the API server"))
    }

    /// etcd, to be stopped, killed, paused and restarted.
    pub fn etcd(&self) -> Result<&Server, Error> {
        self.servers.as_ref().map(|servers| &servers.etcd).ok_or(Error::NotOurs("control etcd"))
    }

    /// The controller manager, if [`Builder::controller_manager`] asked for it.
    pub fn controller_manager(&self) -> Result<&Server, Error> {
        let servers = self.servers.as_ref().ok_or(Error::NotOurs("control the controller manager"))?;
        servers.controller_manager.as_ref().ok_or(Error::NotStarted("a controller manager"))
    }

    /// The audit log.
    ///
    /// # Errors
    /// The cluster isn't ours, or has been started without one.
    pub fn audit(&self) -> Result<AuditLog, Error> {
        let servers = self.servers.as_ref().ok_or(Error::NotOurs("read the audit log"))?;
        servers.audit.clone().ok_or(Error::NotStarted("an audit log"))
    }

    /// Waits until the API server says that it is ready, and serves the namespace `default`.
    ///
    /// # Errors
    /// [`Error::Exited`], [`Error::PortTaken`] or, after a minute and a half, [`Error::NotReady`].
    pub async fn wait_ready(&self) -> Result<(), Error> {
        let mut config = self.client_config();
        // The client's own retries would hide for minutes what the server says.
        config.default_retry = false;
        let client = Client::try_from(config).doing(|| "making a client")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(servers) = &self.servers {
                servers.etcd.check()?;
                servers.api_server.check()?;
            }
            let reason = match timeout(Duration::from_secs(5), ready(&client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() > deadline {
                let log = match &self.servers {
                    Some(servers) => servers.api_server.log_tail(),
                    None => LogTail::of(&self.access.kubeconfig),
                };
                let server = format!("kube-apiserver at {}", self.server_url());
                return Err(Error::NotReady { server, waited: PATIENCE, reason, log });
            }
            sleep(ASK_EVERY).await;
        }
    }

    /// Starts a program that ends with the cluster at the latest; what it prints goes to a log of its own.
    ///
    /// Program, arguments, environment and directory count; standard input is empty.
    pub fn spawn(&self, command: &Command, name: &str) -> Result<Process, Error> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let log = self.directory.join(format!("{number}-{name}.log"));
        Process::spawn(&self.keeper, command, name, &log)
    }

    /// A proxy between one client and the API server, for faults.
    pub async fn proxy(&self) -> Result<Proxy, Error> {
        let (listener, address) = proxy::listen()?;
        let token = self.administrator_token().await?;
        let name = format!("proxy-{}", address.port());
        let url = format!("https://{address}");
        let authority = self.authority.certificate();
        let access = Access::with_token(&self.directory, &name, &url, authority, &token).await?;
        Proxy::start(listener, &self.authority.server()?, &self.access.admin, access)
    }

    /// Gives a service account the right to do everything. The API server's authorizer learns of it a moment later.
    pub async fn give_all_rights(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let binding = ClusterRoleBinding {
            metadata: ObjectMeta {
                name: Some(format!("{namespace}-{name}-may-do-everything")),
                ..Default::default()
            },
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "ClusterRole".to_owned(),
                name: "cluster-admin".to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: name.to_owned(),
                namespace: Some(namespace.to_owned()),
                ..Default::default()
            }]),
        };
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client()?);
        create_if_missing(&bindings, &binding)
            .await
            .doing(|| format!("giving all rights to {namespace}/{name}"))
    }

    /// The token of a service account that may do everything: no certificate gets through a proxy.
    async fn administrator_token(&self) -> Result<String, Error> {
        let (namespace, name) = ("kube-system", "administrator");
        let token = self.service_account_token(namespace, name).await?;
        self.give_all_rights(namespace, name).await?;
        let doing = || "making an administrator for a proxy";
        // The API server's authorizer learns of the binding a moment later.
        let client = Client::try_from(self.access.config_with_token(&token)?).doing(doing)?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) =
            Api::<ClusterRoleBinding>::all(client.clone()).get_metadata("cluster-admin").await
        {
            if Instant::now() > deadline {
                return Err(error).doing(doing);
            }
            sleep(ASK_EVERY).await;
        }
        Ok(token)
    }

    /// Leaves the cluster and `processes` running when this process ends.
    ///
    /// Returns the process id of their keeper: SIGTERM to it (`kill ID`) ends everything and removes the directory.
    pub fn leave_running(self, processes: impl IntoIterator<Item = Process>) -> u32 {
        self.keeper.stay();
        self.keeper.abandon();
        let pid = self.keeper.pid();
        // Their destructors would kill.
        processes.into_iter().for_each(std::mem::forget);
        std::mem::forget(self);
        pid
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.close();
    }
}

async fn ready(client: &Client) -> Result<(), kube::Error> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await?;
    // Made by a loop that readiness doesn't wait for, and tests begin with it.
    Api::<Namespace>::all(client.clone()).get("default").await.map(drop)
}

async fn etcd_ready(etcd: &Server, directory: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        etcd.check()?;
        match UnixStream::connect(server::etcd_socket(directory)).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                let reason = error.to_string();
                return Err(Error::NotReady {
                    server: "etcd".to_owned(),
                    waited: PATIENCE,
                    reason,
                    log: etcd.log_tail(),
                });
            }
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn create_if_missing<K>(api: &Api<K>, object: &K) -> Result<(), kube::Error>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    match api.create(&PostParams::default(), object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        result => result.map(drop),
    }
}

/// A directory for one cluster, and the keeper that removes it.
fn directory() -> Result<(PathBuf, Arc<Keeper>), Error> {
    let directory: io::Result<_> = tempfile::Builder::new().prefix("lessor-cluster-").tempdir();
    let directory = directory.doing(|| "making a directory for the cluster")?.keep();
    let keeper = Keeper::start(&directory).doing(|| "starting the cluster's keeper with `sh`")?;
    Ok((directory, Arc::new(keeper)))
}
