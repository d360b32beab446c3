//! The clients under test, and how their adapters are built and started.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// A client under test.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its name in the table.
    pub name: String,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Client {
    /// The adapter at this path, which names itself.
    pub fn at(path: &Path) -> Result<Self> {
        let program = path.canonicalize().with_context(|| format!("no adapter at {}", path.display()))?;
        let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, program, args: Vec::new(), env: Vec::new() })
    }

    /// The same with one more variable in its environment.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same under another name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// The command that starts it, after `before` where that isn't empty.
    pub fn command(&self, before: &[PathBuf]) -> Command {
        let mut words = before.iter().map(|word| word.as_os_str());
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The names of the project's own clients.
pub const OWN: [&str; 4] = ["rust", "go", "python", "kubectl-lease"];

/// One of the project's own clients, built if it isn't.
pub async fn own(name: &str) -> Result<Client> {
    let client = match name {
        "go" => go(name, &clients().join("go"), "./cmd/conformance").await?,
        "client-go" => go(name, &clients().join("conformance/client-go"), ".").await?,
        "python" => python().await?,
        _ => Client::at(&directory()?.join(format!("adapter-{name}")))?,
    };
    Ok(client.named(name))
}

/// The client of which each mutation breaks one thing; without one it's right.
pub fn simple(mutation: Option<&str>) -> Result<Client> {
    let client = Client::at(&directory()?.join("adapter-simple"))?;
    Ok(match mutation {
        Some(mutation) => client.with_env("MUTATION", mutation).named(mutation),
        None => client.named("simple"),
    })
}

async fn go(name: &str, module: &Path, package: &str) -> Result<Client> {
    let program = directory()?.join(format!("adapter-{name}"));
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(package).current_dir(module);
    done(build).await?;
    Client::at(&program)
}

async fn python() -> Result<Client> {
    let (sources, venv) = (clients().join("python"), directory()?.join("conformance-python"));
    let python = venv.join("bin/python");
    if !python.exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(&venv);
        done(make).await?;
    }
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable"])
        .arg(&sources);
    done(install).await?;
    let args = ["-m", "lessor.conformance"].map(str::to_owned).into();
    // A venv is found by the path of its interpreter, which is a link.
    Ok(Client { name: "python".to_owned(), program: python, args, env: Vec::new() })
}

async fn done(mut command: Command) -> Result<()> {
    let status = command.status().await.with_context(|| format!("starting {:?}", command.as_std()))?;
    ensure!(status.success(), "{:?}: {status}", command.as_std());
    Ok(())
}

/// Where cargo puts programs.
fn directory() -> Result<PathBuf> {
    let this = env::current_exe().context("this program")?;
    let directory = this.parent().context("a directory")?;
    // Tests are one directory below.
    let above = directory.parent().filter(|_| directory.ends_with("deps"));
    Ok(above.unwrap_or(directory).to_owned())
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("clients")).to_owned()
}

/// Builds the program that moves the wall clock of another; `None` where that isn't possible.
pub async fn clockshift(directory: &Path) -> Result<Option<PathBuf>> {
    if env::consts::ARCH != "x86_64" || env::consts::OS != "linux" {
        return Ok(None);
    }
    let (source, program) = (directory.join("clockshift.c"), directory.join("clockshift"));
    fs::write(&source, include_str!("clockshift.c"))?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-o"]).arg(&program).arg(&source);
    Ok(done(compile).await.is_ok().then_some(program))
}
