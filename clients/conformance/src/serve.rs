//! The adapter's side of the protocol, for adapters that are written in Rust.

use std::{io::Write, process::ExitCode, sync::Arc};

use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    clock::Moment,
    protocol::{ClientError, Command, Event, Group, Line, Lost, Numbered, Subject},
};

/// The exit code of a client that has lost something.
const LOST: u8 = 4;

/// A client behind the protocol.
pub trait Client: Send + Sync + 'static {
    /// Does what a command asks for.
    fn run(self: Arc<Self>, command: Command) -> impl Future<Output = Result<Value, ClientError>> + Send;

    /// Whether something was lost that hasn't been stopped since.
    fn has_lost(&self) -> bool;

    /// Ends all that it holds.
    fn release_all(&self) -> impl Future<Output = ()> + Send;
}

/// Where an adapter writes its lines.
#[derive(Clone, Debug)]
pub struct Output(mpsc::UnboundedSender<Line>);

impl Output {
    /// Standard output, written by a thread of its own: a reader that is slow must not hold up renewals.
    #[expect(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Self {
        let (sender, mut lines) = mpsc::unbounded_channel::<Line>();
        std::thread::spawn(move || {
            let mut output = std::io::stdout().lock();
            while let Some(line) = lines.blocking_recv() {
                let Ok(text) = serde_json::to_string(&line) else { continue };
                if writeln!(output, "{text}").and_then(|()| output.flush()).is_err() {
                    return;
                }
            }
        });
        Self(sender)
    }

    /// Reports a loss.
    pub fn lost(&self, subject: Subject, reason: &str, message: impl ToString) {
        let (reason, message) = (reason.to_owned(), message.to_string());
        self.line(Line::Event(Event::Lost(Lost { subject, reason, message, at: Moment::now() })));
    }

    fn line(&self, line: Line) {
        // Without a reader there is none to report that to.
        let _ = self.0.send(line);
    }
}

/// Takes commands until the end of the input, or SIGTERM.
///
/// # Errors
/// If signals can't be received.
pub async fn serve<C: Client>(
    name: String,
    can: Vec<Group>,
    client: Arc<C>,
    output: Output,
) -> std::io::Result<ExitCode> {
    let mut terminated = signal(SignalKind::terminate())?;
    output.line(Line::Event(Event::Ready { protocol: 1, client: name, can }));
    let mut lines = input();
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = terminated.recv() => {
                client.release_all().await;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let Some(line) = line else {
            return Ok(ExitCode::from(if client.has_lost() { LOST } else { 0 }));
        };
        let Ok(Numbered { id, command }) = serde_json::from_str(&line) else {
            let id = serde_json::from_str::<Value>(&line).ok().and_then(|line| line["id"].as_u64());
            let error = ClientError::new("unsupported", format!("no command that this adapter has: {line}"));
            output.line(Line::Error { id: id.unwrap_or_default(), error });
            continue;
        };
        let (client, output) = (Arc::clone(&client), output.clone());
        tokio::spawn(async move {
            output.line(match client.run(command).await {
                Ok(ok) => Line::Ok { id, ok },
                Err(error) => Line::Error { id, error },
            });
        });
    }
}

/// The lines of standard input, until its end.
fn input() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lines().map_while(Result::ok);
        input.all(|line| sender.send(line).is_ok());
    });
    lines
}

/// The answer to a command that this adapter doesn't have.
pub fn unsupported() -> Result<Value, ClientError> {
    Err(ClientError::new("unsupported", "this adapter doesn't have this command"))
}

/// An answer without content.
pub fn done() -> Result<Value, ClientError> {
    Ok(Value::Object(Default::default()))
}

/// An answer.
pub fn answer(value: impl serde::Serialize) -> Result<Value, ClientError> {
    serde_json::to_value(value).map_err(|error| ClientError::new("other", error))
}
