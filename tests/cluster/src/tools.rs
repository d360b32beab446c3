//! The binaries of a cluster: where they are found, and how they are built.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use crate::{
    error::{Doing, Error, LogTail},
    keeper::Keeper,
    process::Process,
};

/// The one place that says which versions are built.
const GO_MOD: &str = include_str!("../go.mod");
/// Where `go.mod` is. This crate is used from its sources only.
const GO_MODULE: &str = env!("CARGO_MANIFEST_DIR");
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// A binary that a cluster or its tests need.
///
/// Each is looked for in this order: its `TEST_ASSET_…` variable, the directory `KUBEBUILDER_ASSETS`, the cache; else
/// it is built from source with Go, which takes minutes, once. The cache is `lessor/cluster/VERSION` in
/// `$XDG_CACHE_HOME` or `~/.cache`, or what `LESSOR_CLUSTER_CACHE` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The store behind the API server.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The controllers: namespace deletion, garbage collection, and so on.
    KubeControllerManager,
    /// The command line client.
    Kubectl,
    /// The package manager.
    Helm,
}

impl Tool {
    /// The binary's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Helm => "helm",
        }
    }

    /// The version that is built if none is found.
    pub fn version(self) -> &'static str {
        module_version(self.module())
    }

    /// Finds the binary, or builds it; that takes minutes, and its progress goes to standard error.
    pub async fn path(self) -> Result<PathBuf, Error> {
        if let Some(path) = env::var_os(self.variable()).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            return if path.is_file() {
                Ok(path)
            } else {
                Err(Error::MissingAsset { variable: self.variable(), path })
            };
        }
        if let Some(assets) = env::var_os("KUBEBUILDER_ASSETS") {
            let path = Path::new(&assets).join(self.name());
            if path.is_file() {
                return Ok(path);
            }
        }
        let directory = cache()?;
        let path = directory.join(self.file_name());
        if !path.is_file() {
            self.build(&directory, &path).await?;
        }
        Ok(path)
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Etcd => "TEST_ASSET_ETCD",
            Self::KubeApiserver => "TEST_ASSET_KUBE_APISERVER",
            Self::KubeControllerManager => "TEST_ASSET_KUBE_CONTROLLER_MANAGER",
            Self::Kubectl => "TEST_ASSET_KUBECTL",
            Self::Helm => "TEST_ASSET_HELM",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::Helm => "helm.sh/helm/v3",
            Self::KubeApiserver | Self::KubeControllerManager | Self::Kubectl => "k8s.io/kubernetes",
        }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => self.module().to_owned(),
            _ => format!("{}/cmd/{}", self.module(), self.name()),
        }
    }

    /// The name in the cache. Its directory says Kubernetes' version; other tools carry their own.
    fn file_name(self) -> String {
        match self {
            Self::Etcd | Self::Helm => format!("{}-{}", self.name(), self.version()),
            Self::KubeApiserver | Self::KubeControllerManager | Self::Kubectl => self.name().to_owned(),
        }
    }

    async fn build(self, directory: &Path, path: &Path) -> Result<(), Error> {
        let cache = || format!("using the cache {}", directory.display());
        fs::create_dir_all(directory).doing(cache)?;
        let lock = File::create(directory.join(".lock")).doing(cache)?;
        self.wait_for_lock(&lock).await?;
        if path.is_file() {
            return Ok(());
        }
        let work = tempfile::Builder::new().prefix(".build-").tempdir_in(directory).doing(cache)?.keep();
        // The keeper ends the build with this process, and removes the directory in any case.
        let keeper = Arc::new(Keeper::start(&work).doing(|| "starting the build's keeper")?);
        let built = work.join(self.name());
        let log = work.join("log");
        self.check_go().await?;
        let mut command = Command::new("go");
        command
            .args(["build", "-v", "-mod=readonly", "-trimpath", "-ldflags", &link_flags(), "-o"])
            .arg(&built)
            .arg(self.package())
            .current_dir(GO_MODULE)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off");
        let go = Process::spawn(&keeper, &command, "go build", &log)?;
        let started = Instant::now();
        self.say(&format!("building from source, once; to be kept in {}", directory.display()));
        let status = loop {
            match timeout(PROGRESS_EVERY, go.wait()).await {
                Ok(status) => break status?,
                Err(_) => self.say(&format!("{} s, {}", started.elapsed().as_secs(), progress(&go.log()))),
            }
        };
        if !status.success() {
            let log = LogTail::of(&log);
            return Err(Error::Build { tool: self.name(), variable: self.variable(), status, log });
        }
        // Atomic: a file of this name is always a whole binary.
        fs::rename(&built, path).doing(cache)?;
        self.say(&format!("built in {} s", started.elapsed().as_secs()));
        Ok(())
    }

    /// Asks Go for its version, only to tell a missing Go from a failing build.
    async fn check_go(self) -> Result<(), Error> {
        let go = tokio::task::spawn_blocking(|| Command::new("go").arg("version").output()).await;
        match go.map_err(io::Error::other).flatten() {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::MissingGo { tool: self.name(), variable: self.variable(), source }),
        }
    }

    /// The lock is released when the file is closed, so also when this process dies.
    async fn wait_for_lock(self, lock: &File) -> Result<(), Error> {
        let mut said = Instant::now();
        let started = said;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) => return Err(error).doing(|| "locking the cluster's cache"),
                Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(100)).await,
            }
            if said.elapsed() >= PROGRESS_EVERY {
                said = Instant::now();
                self.say(&format!("{} s, another process builds", started.elapsed().as_secs()));
            }
        }
    }

    /// Tells the person who waits. Not with `eprintln!`, since the test harness holds that back until the test ends.
    fn say(self, what: &str) {
        let line = format!("lessor-cluster: {} {}: {what}\n", self.name(), self.version());
        // Standard error is closed: there is no reader to report to.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// What `go build -v` is at: it names each package that it has compiled, and each module that it fetches.
fn progress(log: &str) -> String {
    let (fetched, compiled): (Vec<_>, Vec<_>) =
        log.lines().partition(|line| line.starts_with("go: downloading"));
    match compiled.last() {
        Some(package) => format!("{} packages compiled, last {package}", compiled.len()),
        None if fetched.is_empty() => "linking what was compiled before".to_owned(),
        None => format!("{} modules fetched", fetched.len()),
    }
}

/// The version of `module` in `go.mod`, for example `v1.36.3`.
fn module_version(module: &str) -> &'static str {
    GO_MOD
        .lines()
        .filter_map(|line| line.split_once(module))
        .filter(|(before, _)| before.trim().is_empty())
        .find_map(|(_, after)| {
            after.strip_prefix(' ')?.split_whitespace().next().filter(|word| *word != "=>")
        })
        .unwrap_or("unknown")
}

/// Sets the versions that the binaries report; kubectl and helm parse them, and refuse what isn't one.
fn link_flags() -> String {
    let kubernetes = module_version("k8s.io/kubernetes");
    let helm = module_version("helm.sh/helm/v3");
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = vec!["-s -w".to_owned()];
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags.push(format!("-X {package}.gitVersion={kubernetes}"));
        flags.push(format!("-X {package}.gitMajor={major}"));
        flags.push(format!("-X {package}.gitMinor={minor}"));
        flags.push(format!("-X {package}.gitTreeState=archive"));
        flags.push(format!("-X {package}.gitCommit=unknown"));
    }
    flags.push(format!("-X helm.sh/helm/v3/internal/version.version={helm}"));
    for package in ["helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"] {
        flags.push(format!("-X {package}.k8sVersionMajor={major}"));
        flags.push(format!("-X {package}.k8sVersionMinor={minor}"));
    }
    flags.join(" ")
}

fn cache() -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = set("LESSOR_CLUSTER_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("lessor/cluster")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/lessor/cluster")))
        .ok_or(Error::NoCache)?;
    Ok(root.join(module_version("k8s.io/kubernetes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        for tool in [Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager, Tool::Kubectl, Tool::Helm]
        {
            let version = tool.version();
            assert!(
                version.starts_with('v') && version.split('.').count() == 3,
                "{}: {version}",
                tool.name()
            );
        }
    }

    #[test]
    fn progress_shows_what_go_does() {
        assert_eq!(progress("go: downloading a v1\ngo: downloading b v1\n"), "2 modules fetched");
        assert_eq!(
            progress("go: downloading a v1\nk8s.io/api\nk8s.io/b\n"),
            "2 packages compiled, last k8s.io/b"
        );
    }
}
