//! The Python package: its wheel, installed into a new virtual environment, against a real server.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use lessor_kit::world::World;

use crate::languages::{cached, done, holds};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python");

#[tokio::test]
#[ignore = "installs packages of Python's: just clients"]
async fn a_program_with_threads_holds_a_lease() {
    example("python-threads", "register.py").await;
}

#[tokio::test]
#[ignore = "installs packages of Python's: just clients"]
async fn a_program_with_asyncio_holds_a_lease() {
    example("python-asyncio", "register_async.py").await;
}

#[tokio::test]
#[ignore = "installs packages of Python's: just clients"]
async fn the_package_passes_its_tests_on_a_cluster() {
    let world = World::new("python-package").await;
    let _operator = world.primary(&[]).await;
    let mut pytest = Command::new(python());
    // From outside of the sources, so that what is tested is the wheel.
    pytest.args(["-m", "pytest", "-q", "-rA", "--import-mode=importlib", "-c", "/dev/null", "--rootdir"]);
    pytest.arg(PACKAGE).arg("-p").arg("no:cacheprovider").arg(format!("{PACKAGE}/tests/cluster"));
    pytest.current_dir(world.cluster.directory()).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.env("KUBECONFIG", world.cluster.kubeconfig_path()).env("NAMESPACE", &world.namespace);
    tokio::task::spawn_blocking(move || done(&mut pytest)).await.expect("it passes");
}

async fn example(name: &str, program: &str) {
    let python = python();
    holds(name, |proxy, _| {
        let mut command = Command::new(python);
        command.arg(format!("{PACKAGE}/examples/{program}")).env("KUBECONFIG", proxy.kubeconfig_path());
        command
    })
    .await;
}

/// The Python of a new environment, in which the wheel is installed.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let directory = cached("python-package");
        let (environment, wheels) = (directory.join("environment"), directory.join("wheels"));
        if wheels.exists() {
            std::fs::remove_dir_all(&wheels).expect("a directory");
        }
        done(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment));
        let python = environment.join("bin/python");
        let pip = || {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "--quiet"]);
            pip
        };
        done(pip().args(["wheel", "--no-deps", "--wheel-dir"]).arg(&wheels).arg(PACKAGE));
        let wheel =
            std::fs::read_dir(&wheels).expect("a directory").next().expect("a wheel").expect("a file");
        let versions = format!("{PACKAGE}/requirements-dev.txt");
        let wheel = format!("{}[asyncio]", wheel.path().display());
        done(pip().args(["install", "--constraint", &versions, &wheel, "pytest"]));
        python
    })
}
