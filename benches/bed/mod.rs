//! The bed that benchmarks of the whole operator lie on: a real API server, replicas of the release build, and what the kernel
//! says of them.
#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::{fs, ops::Range, path::PathBuf, process::Command, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use lessor_api::{AfterExpiry, Lease, LeaseSpec, crd};
use lessor_cluster::{Cluster, Process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

/// Where everything happens.
pub(crate) const NAMESPACE: &str = "bench";
/// The service account that replicas run as.
const ACCOUNT: &str = "lessor";
/// The service account that makes leases and renews them: administrators are served before everybody else, so a benchmark
/// that asked as one would starve the replicas.
const HOLDERS: &str = "holders";
/// Requests of a benchmark under way at once.
pub(crate) const AT_ONCE: usize = 48;
/// What the kernel counts processor time in: a hundredth of a second, wherever Linux runs.
const TICK: Duration = Duration::from_millis(10);

/// The program that replicas run: that of this build, unless `LESSOR_PROGRAM` names another, such as the image's.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("LESSOR_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_lessor").into()).into()
}

/// A cluster with the kinds of Lessor, a namespace, and a client.
pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

impl Bed {
    /// Prepares this cluster.
    pub(crate) async fn on(cluster: Cluster) -> Self {
        let client = cluster.client().expect("a client");
        let crds = Api::all(client.clone());
        for definition in crd::all() {
            crds.create(&PostParams::default(), &definition).await.expect("a definition");
            let name = definition.name_any();
            await_condition(crds.clone(), &name, is_crd_established()).await.expect("a kind");
        }
        let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
        for account in [ACCOUNT, HOLDERS] {
            cluster.give_all_rights(NAMESPACE, account).await.expect("all rights");
        }
        let client = cluster.service_account_client(NAMESPACE, HOLDERS).await.expect("a client");
        Self { cluster, client }
    }

    /// The leases.
    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The ConfigMaps.
    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The process ids of API server and etcd.
    pub(crate) fn servers(&self) -> [u32; 2] {
        [self.cluster.api_server(), self.cluster.etcd()].map(|server| server.expect("ours").process().pid())
    }

    /// The processor time that API server and etcd have used.
    pub(crate) fn servers_time(&self) -> Duration {
        self.servers().into_iter().map(processor_time).sum()
    }

    /// The user that replicas are for the API server.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}")
    }

    /// Starts a replica with these arguments besides the defaults.
    pub(crate) async fn replica(&self, args: &[&str]) -> Replica {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let admin = listener.local_addr().expect("its address").to_string();
        drop(listener);
        let kubeconfig =
            self.cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT).await.expect("an account");
        let mut command = Command::new(program());
        command.args(["run", "--admin-address", &admin, "--kubeconfig"]).arg(kubeconfig).args(args);
        let started = Instant::now();
        let process = self.cluster.spawn(&command, "operator").expect("an operator");
        Replica { process, admin, started }
    }

    /// How many leases there are. Asks for one of them, and how many there are besides.
    pub(crate) async fn count_leases(&self) -> usize {
        let one = self.leases().list_metadata(&ListParams::default().limit(1)).await.expect("leases");
        let besides = one.metadata.remaining_item_count.unwrap_or_default();
        one.items.len() + usize::try_from(besides).expect("a count")
    }

    /// Makes one lease of this name.
    pub(crate) async fn lease(&self, name: &str, ttl_seconds: i64) {
        self.lease_of(name, LeaseSpec { ttl_seconds, ..LeaseSpec::default() }).await;
    }

    /// Makes one lease of this name that stays when it has expired, to be looked at.
    pub(crate) async fn lease_to_keep(&self, name: &str, ttl_seconds: i64) {
        let after_expiry = AfterExpiry::Retain;
        self.lease_of(name, LeaseSpec { ttl_seconds, after_expiry, ..LeaseSpec::default() }).await;
    }

    /// Makes one lease of this name, and of this sort.
    pub(crate) async fn lease_of(&self, name: &str, spec: LeaseSpec) {
        made(self.leases().create(&PostParams::default(), &Lease::new(name, spec)).await);
    }

    /// Makes a ConfigMap, attached to this lease as a whole if there is one.
    pub(crate) async fn config_map(&self, name: &str, lease: Option<&str>, text: &str) {
        let annotations = lease.map(|lease| [("lessor.dev/lease".to_owned(), lease.to_owned())].into());
        let metadata = ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() };
        let data = Some([("text".to_owned(), text.to_owned())].into());
        let map = ConfigMap { metadata, data, ..ConfigMap::default() };
        made(self.config_maps().create(&PostParams::default(), &map).await);
    }

    /// Makes leases with these numbers, each with an attached ConfigMap.
    pub(crate) async fn leases_with_objects(
        &self,
        prefix: &str,
        numbers: Range<usize>,
        ttl: impl Fn(usize) -> i64,
    ) {
        let (of, started) = (numbers.len(), Instant::now());
        let mut made = stream::iter(numbers)
            .map(|number| {
                let (name, ttl) = (format!("{prefix}-{number}"), ttl(number));
                async move {
                    self.config_map(&name, Some(&name), "a value").await;
                    self.lease(&name, ttl).await;
                }
            })
            .buffer_unordered(AT_ONCE)
            .enumerate();
        while let Some((done, ())) = made.next().await {
            if (done + 1) % 5000 == 0 {
                println!(
                    "    {} of {of} leases made after {:.0} s",
                    done + 1,
                    started.elapsed().as_secs_f64()
                );
            }
        }
    }
}

/// Names are used once: what is there already was made by a request whose answer got lost, and which the client sent again.
fn made<K>(answer: kube::Result<K>) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        answer => drop(answer.expect("an object")),
    }
}

/// A replica of the operator.
pub(crate) struct Replica {
    pub(crate) process: Process,
    admin: String,
    started: Instant,
}

impl Replica {
    /// Waits until it has seen everything; says how long that took since its start.
    pub(crate) async fn ready(&self) -> Duration {
        while !self.asked("/readyz").await.is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert_eq!(self.process.exit_status(), None, "it ended: {}", self.process.log());
            sleep(Duration::from_millis(10)).await;
        }
        self.started.elapsed()
    }

    /// How long ago it was started.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// A figure of its metrics, by the beginning of its line.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.asked("/metrics").await?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next_back()?.parse().ok()
    }

    /// Whether it says that it is primary.
    pub(crate) async fn is_primary(&self) -> bool {
        self.metric("lessor_is_primary").await == Some(1.0)
    }

    /// The memory that it has now, in MB.
    pub(crate) fn memory(&self) -> f64 {
        memory(self.process.pid())
    }

    /// The most memory that it ever had, in MB.
    pub(crate) fn peak_memory(&self) -> f64 {
        peak_memory(self.process.pid())
    }

    /// The processor time that it has used.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(self.process.pid())
    }

    async fn asked(&self, path: &str) -> Option<String> {
        let asking = async {
            let mut stream = TcpStream::connect(&self.admin).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        asking.await.ok()
    }
}

/// Which of these is primary; waits until one is.
pub(crate) async fn primary_of(replicas: &[Replica]) -> usize {
    loop {
        for (index, replica) in replicas.iter().enumerate() {
            if replica.is_primary().await {
                return index;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until so many leases are granted, and nothing is left to do.
pub(crate) async fn granted(replicas: &[Replica], leases: usize) {
    let begun = Instant::now();
    let mut shown = Duration::ZERO;
    loop {
        let primary = primary_of(replicas).await;
        let granted = replicas[primary].metric("lessor_leases{state=\"Granted\"}").await.unwrap_or_default();
        let queued = replicas[primary].metric("lessor_work_queued").await.unwrap_or_default();
        if granted as usize >= leases && queued == 0.0 {
            return;
        }
        if begun.elapsed() > shown + Duration::from_secs(10) {
            shown = begun.elapsed();
            println!("    {granted} of {leases} granted");
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// The memory that a process has now, in MB.
pub(crate) fn memory(pid: u32) -> f64 {
    memory_figure(pid, "VmRSS:")
}

/// The most memory that a process ever had, in MB.
pub(crate) fn peak_memory(pid: u32) -> f64 {
    memory_figure(pid, "VmHWM:")
}

/// A figure of a process's memory, in MB.
fn memory_figure(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the figure");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes / 1024.0
}

/// The processor time that a process has used.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    // The name of the program, in parentheses, may hold anything; what follows are numbers.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let ticks: Vec<u32> =
        fields.split(' ').skip(11).take(2).map(|field| field.parse().expect("ticks")).collect();
    TICK * ticks.iter().sum::<u32>()
}
