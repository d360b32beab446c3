//! A client under test: a process with lines of JSON in and out.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command as Program},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::{
    clock::Moment,
    protocol::{Belief, ClientError, Command, Event, Group, Line, Lost, Numbered, Subject},
};

/// How long an adapter may take for a command that waits for nothing, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many lines of standard error a failure shows.
const SHOWN: usize = 12;

/// What an adapter has written.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// What it believed, in order.
    pub beliefs: Vec<(Subject, Belief)>,
    /// What it reported as lost, in order.
    pub lost: Vec<Lost>,
    /// The last lines on standard error.
    pub errors: Vec<String>,
    ready: Option<(String, Vec<Group>)>,
    ended: bool,
}

type Answer = Result<Value, ClientError>;
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// A client under test. Killed when it's dropped.
#[derive(Debug)]
pub struct Adapter {
    child: tokio::sync::Mutex<Child>,
    group: Pid,
    input: Mutex<Option<mpsc::UnboundedSender<String>>>,
    waiting: Waiting,
    transcript: watch::Sender<Transcript>,
    numbers: AtomicU64,
    /// Times at which it was frozen, and at which it went on.
    pauses: Mutex<Vec<(Moment, Option<Moment>)>>,
}

impl Adapter {
    /// Starts a program in a process group of its own, and waits until it's ready.
    pub async fn start(mut program: Program) -> Result<Self> {
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        program.process_group(0).kill_on_drop(true);
        let mut child = program.spawn().with_context(|| format!("starting {:?}", program.as_std()))?;
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let group = id.context("it has ended already")?;
        let (stdin, stdout) =
            (child.stdin.take().context("no input")?, child.stdout.take().context("no output")?);
        let errors = child.stderr.take().context("no errors")?;
        let (transcript, waiting) = (watch::Sender::new(Transcript::default()), Waiting::default());
        let (input, lines) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, lines));
        tokio::spawn(read(stdout, transcript.clone(), Arc::clone(&waiting)));
        tokio::spawn(read_errors(errors, transcript.clone()));
        let adapter = Self {
            child: child.into(),
            group,
            input: Mutex::new(Some(input)),
            waiting,
            transcript,
            numbers: AtomicU64::new(1),
            pauses: Mutex::default(),
        };
        adapter.wait_ready().await?;
        Ok(adapter)
    }

    async fn wait_ready(&self) -> Result<()> {
        let mut transcript = self.transcript.subscribe();
        let waited = timeout(
            PATIENCE,
            transcript.wait_for(|transcript| transcript.ready.is_some() || transcript.ended),
        )
        .await;
        let is_ready =
            waited.is_ok_and(|transcript| transcript.is_ok_and(|transcript| transcript.ready.is_some()));
        if is_ready { Ok(()) } else { bail!("it isn't ready within {PATIENCE:?}: {}", self.errors()) }
    }

    /// The library and its version.
    pub fn client(&self) -> String {
        self.transcript.borrow().ready.as_ref().map(|(client, _)| client.clone()).unwrap_or_default()
    }

    /// Whether it has these commands.
    pub fn can(&self, group: Group) -> bool {
        self.transcript.borrow().ready.as_ref().is_some_and(|(_, can)| can.contains(&group))
    }

    /// The process id, which is that of the group.
    pub fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// What it has written until now.
    pub fn transcript(&self) -> Transcript {
        self.transcript.borrow().clone()
    }

    /// When it was frozen, and when it went on.
    pub fn pauses(&self) -> Vec<(Moment, Option<Moment>)> {
        self.pauses.lock().clone()
    }

    /// The last lines on standard error.
    pub fn errors(&self) -> String {
        self.transcript.borrow().errors.join("\n")
    }

    /// Sends a command, whose answer comes later.
    pub fn send(&self, command: Command) -> impl Future<Output = Result<Answer>> + use<> {
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        let text = serde_json::to_string(&Numbered { id, command });
        let sent = text.map_err(anyhow::Error::from).and_then(|text| {
            let input = self.input.lock();
            let input = input.as_ref().context("its input is closed")?;
            input.send(text).map_err(|_| anyhow!("it takes no commands any more"))
        });
        async move {
            sent?;
            answer.await.map_err(|_| anyhow!("it has ended without an answer"))
        }
    }

    /// Sends a command and waits for its answer.
    pub async fn ask<T: DeserializeOwned>(&self, command: Command) -> Result<Result<T, ClientError>> {
        self.ask_within(PATIENCE, command).await
    }

    /// Sends a command and waits for its answer for so long.
    pub async fn ask_within<T: DeserializeOwned>(
        &self,
        patience: Duration,
        command: Command,
    ) -> Result<Result<T, ClientError>> {
        let what = format!("{command:?}");
        let answer = timeout(patience, self.send(command)).await;
        match answer
            .with_context(|| format!("no answer to {what} within {patience:?}: {}", self.errors()))??
        {
            Ok(answer) => {
                Ok(Ok(serde_json::from_value(answer).with_context(|| format!("the answer to {what}"))?))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Sends a command that has to succeed.
    pub async fn done<T: DeserializeOwned>(&self, command: Command) -> Result<T> {
        let what = format!("{command:?}");
        let answer = self.ask(command).await?;
        answer.map_err(|error| anyhow!("{what} failed: {} ({})", error.message, error.code))
    }

    /// What it believes of a subject now.
    pub async fn belief(&self, subject: &Subject) -> Result<Belief> {
        let belief: Belief = self.done(Command::Status(subject.clone())).await?;
        self.transcript.send_modify(|transcript| transcript.beliefs.push((subject.clone(), belief.clone())));
        Ok(belief)
    }

    /// Waits for the loss of a subject.
    pub async fn lost(&self, subject: &Subject, patience: Duration) -> Result<Lost> {
        let mut transcript = self.transcript.subscribe();
        let find =
            |transcript: &Transcript| transcript.lost.iter().find(|lost| lost.subject == *subject).cloned();
        let waited = timeout(patience, transcript.wait_for(|transcript| find(transcript).is_some())).await;
        let lost = waited.ok().and_then(|transcript| find(&*transcript.ok()?));
        lost.with_context(|| {
            format!("it reported no loss of {subject:?} within {patience:?}: {}", self.errors())
        })
    }

    /// Freezes it and all that it started (SIGSTOP).
    pub fn pause(&self) -> Result<()> {
        self.pauses.lock().push((Moment::now(), None));
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        if let Some((_, end)) = self.pauses.lock().last_mut() {
            *end = Some(Moment::now());
        }
        self.signal(Signal::CONT)
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Kills it, with all that it started.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process_group(self.group, signal).with_context(|| format!("sending {signal:?}"))
    }

    /// Closes its standard input.
    pub fn close(&self) {
        self.input.lock().take();
    }

    /// Waits for its end, and returns the exit code.
    pub async fn exit_code(&self) -> Result<i32> {
        let mut child = self.child.lock().await;
        let status = timeout(PATIENCE, child.wait()).await;
        let status =
            status.with_context(|| format!("it hasn't ended within {PATIENCE:?}: {}", self.errors()))??;
        status.code().with_context(|| format!("{status}: {}", self.errors()))
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // What it started, too. It may have ended by itself.
        let _ = self.signal(Signal::KILL);
    }
}

async fn write(mut input: ChildStdin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        // A client that has ended reads no more, which its exit code shows.
        if input.write_all(line.as_bytes()).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

async fn read(output: impl AsyncRead + Unpin, transcript: watch::Sender<Transcript>, waiting: Waiting) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        let (id, answer) = match serde_json::from_str::<Line>(&text) {
            Ok(Line::Ok { id, ok }) => (id, Ok(ok)),
            Ok(Line::Error { id, error }) => (id, Err(error)),
            Ok(Line::Event(Event::Ready { client, can, .. })) => {
                transcript.send_modify(|transcript| transcript.ready = Some((client, can)));
                continue;
            }
            Ok(Line::Event(Event::Lost(lost))) => {
                transcript.send_modify(|transcript| transcript.lost.push(lost));
                continue;
            }
            Ok(Line::Unknown(_)) => continue,
            Err(error) => {
                transcript.send_modify(|transcript| {
                    transcript.errors.push(format!("no line of the protocol: {text}: {error}"))
                });
                continue;
            }
        };
        if let Some(sender) = waiting.lock().remove(&id) {
            let _ = sender.send(answer);
        }
    }
    // All that wait have no answer.
    waiting.lock().clear();
    transcript.send_modify(|transcript| transcript.ended = true);
}

async fn read_errors(errors: impl AsyncRead + Unpin, transcript: watch::Sender<Transcript>) {
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        transcript.send_modify(|transcript| {
            transcript.errors.push(line);
            let over = transcript.errors.len().saturating_sub(SHOWN);
            transcript.errors.drain(..over);
        });
    }
}

/// The program at this path.
pub fn program(path: &Path) -> Program {
    Program::new(path)
}
