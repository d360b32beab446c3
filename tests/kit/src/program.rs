//! The programs of the workspace that tests and benchmarks start.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The operator, which cargo builds before any test or benchmark of its package. `LESSOR_PROGRAM` names another, such as
/// the image's.
///
/// # Panics
/// If it isn't there.
pub fn operator() -> &'static Path {
    static OPERATOR: OnceLock<PathBuf> = OnceLock::new();
    OPERATOR.get_or_init(|| {
        // Cargo sets the second for tests; who starts a test's program by hand finds the operator one directory above it.
        let named = ["LESSOR_PROGRAM", "CARGO_BIN_EXE_lessor"].into_iter().find_map(env::var_os);
        let operator = named.map_or_else(|| directory().join("lessor"), PathBuf::from);
        assert!(operator.exists(), "no operator at {}: run `cargo build`", operator.display());
        operator
    })
}

/// The plugin `kubectl lease`. It belongs to another package, so cargo builds it for no test of the operator by itself.
pub fn plugin() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        build(&["--package", "kubectl-lease"]);
        directory().join("kubectl-lease")
    })
}

/// An example of this name, built if it isn't.
pub fn example(name: &str) -> PathBuf {
    build(&["--package", "lessor", "--example", name]);
    directory().join("examples").join(name)
}

/// Builds something with the profile of the program that runs.
fn build(what: &[&str]) {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet"]).args(what).current_dir(env!("CARGO_MANIFEST_DIR"));
    if directory().file_name() == Some(OsStr::new("release")) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success(), "{what:?} can't be built");
}

/// Where cargo puts programs. Those of tests, benchmarks and examples are one directory below.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let this = env::current_exe().expect("this program");
        let directory = this.parent().expect("a directory");
        let is_below = ["deps", "examples"].map(OsStr::new).iter().any(|below| directory.ends_with(below));
        let above = directory.parent().filter(|_| is_below);
        above.unwrap_or(directory).to_owned()
    })
}
