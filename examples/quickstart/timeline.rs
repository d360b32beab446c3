//! What the person who runs the quickstart sees: one line for everything that happens, and, on a terminal, the time that
//! each lease has left below them.

use std::{
    env,
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Where everything is told. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// On a terminal that can move its cursor.
    live: bool,
    colours: bool,
    screen: Mutex<Screen>,
}

#[derive(Debug)]
struct Screen {
    start: Instant,
    /// The lines below the last one, which are drawn anew again and again.
    footer: Vec<String>,
    drawn: usize,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Applied,
    Granted,
    Renewed,
    Stopped,
    Expiring,
    Expired,
    Deleted,
    Revoked,
    Removed,
    Refused,
    Released,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Granted => "granted",
            Self::Renewed => "renewed",
            Self::Stopped => "stopped",
            Self::Expiring => "expiring",
            Self::Expired => "expired",
            Self::Deleted => "deleted",
            Self::Revoked => "revoked",
            Self::Removed => "removed",
            Self::Refused => "refused",
            Self::Released => "released",
        }
    }

    fn colour(self) -> Colour {
        match self {
            Self::Granted => Colour::Green,
            Self::Renewed => Colour::Cyan,
            Self::Expiring => Colour::Yellow,
            Self::Expired | Self::Revoked => Colour::Red,
            Self::Removed | Self::Refused => Colour::Magenta,
            Self::Applied | Self::Stopped | Self::Deleted => Colour::Bold,
            Self::Released => Colour::Dim,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Colour {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Magenta,
    Cyan,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Magenta => "35",
            Self::Cyan => "36",
        }
    }
}

/// How wide the bar of a lease is, in characters.
const BAR: usize = 30;

impl Timeline {
    /// For standard output, whatever that is.
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb");
        let colours = terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Screen { start: Instant::now(), footer: Vec::new(), drawn: 0 };
        Self { shared: Arc::new(Shared { live: terminal, colours, screen: Mutex::new(screen) }) }
    }

    /// Whether [`Timeline::footer`] is worth its while.
    pub(crate) fn is_live(&self) -> bool {
        self.shared.live
    }

    /// The first line.
    pub(crate) fn title(&self, text: &str) {
        self.print(&format!("{}\n", self.paint(Colour::Bold, text)));
    }

    /// Something that was put in place before the story begins.
    pub(crate) fn fact(&self, about: &str, text: &str) {
        self.print(&format!("  {} {text}", self.paint(Colour::Bold, &format!("{about:<9}"))));
    }

    /// The time that the lines show begins now.
    pub(crate) fn begin(&self) {
        self.print("");
        self.shared.screen.lock().start = Instant::now();
    }

    /// Something happened.
    pub(crate) fn event(&self, what: What, whom: &str, detail: &str) {
        let at = self.shared.screen.lock().start.elapsed();
        let word = self.paint(what.colour(), &format!("{:<8}", what.word()));
        self.print(&format!("{:>7.2} s  {word}  {whom:<25}  {detail}", at.as_secs_f64()));
    }

    /// A claim that the API server confirmed.
    pub(crate) fn held(&self, claim: &str) {
        self.print(&format!(
            "           {} {}",
            self.paint(Colour::Green, "✓"),
            self.paint(Colour::Dim, claim)
        ));
    }

    /// A claim that it didn't confirm.
    pub(crate) fn broken(&self, claim: &str, seen: &str) {
        let mark = self.paint(Colour::Red, "✗");
        self.print(&format!("           {mark} expected: {claim}\n             seen:     {seen}"));
    }

    /// A line of plain text.
    pub(crate) fn say(&self, text: &str) {
        self.print(text);
    }

    /// The last line, if all is well.
    pub(crate) fn success(&self, text: &str) {
        self.print(&format!("\n{} {text}", self.paint(Colour::Green, "✓")));
    }

    /// Something went wrong.
    pub(crate) fn failure(&self, text: &str) {
        self.footer(Vec::new());
        self.print(&format!("\n{} {text}", self.paint(Colour::Red, "✗")));
    }

    /// Replaces the lines at the bottom.
    pub(crate) fn footer(&self, lines: Vec<String>) {
        if !self.shared.live {
            return;
        }
        let mut screen = self.shared.screen.lock();
        screen.footer = lines;
        screen.draw("");
    }

    /// A lease and the time that it has left, for the footer.
    pub(crate) fn bar(&self, lease: &str, left: Duration, ttl: Duration) -> String {
        let share = (left.as_secs_f64() / ttl.as_secs_f64()).clamp(0.0, 1.0);
        let full = (share * BAR as f64).round() as usize;
        let colour = if share > 0.5 {
            Colour::Green
        } else if share > 0.2 {
            Colour::Yellow
        } else {
            Colour::Red
        };
        let bar = self.paint(colour, &"█".repeat(full)) + &self.paint(Colour::Dim, &"░".repeat(BAR - full));
        let left = match left.as_secs() {
            0..600 => format!("{:.1} s", left.as_secs_f64()),
            seconds => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        };
        format!("           {lease:<16}  {bar}  {left}")
    }

    fn paint(&self, colour: Colour, text: &str) -> String {
        if self.shared.colours { format!("\x1b[{}m{text}\x1b[0m", colour.code()) } else { text.to_owned() }
    }

    fn print(&self, line: &str) {
        self.shared.screen.lock().draw(&format!("{line}\n"));
    }
}

impl Screen {
    /// Prints `text` where the footer is, and the footer below it.
    fn draw(&mut self, text: &str) {
        let mut all = String::new();
        if self.drawn > 0 {
            // Up to where the footer begins, and erase it.
            all += &format!("\x1b[{}F\x1b[J", self.drawn);
        }
        all += text;
        self.drawn = self.footer.len();
        if self.drawn > 0 {
            // Lines of the footer are cut at the edge: wrapped ones would be more than are erased.
            all += &format!("\x1b[?7l{}\n\x1b[?7h", self.footer.join("\n"));
        }
        let mut out = io::stdout().lock();
        // There is no reader. The exit code still reports the result.
        let _ = out.write_all(all.as_bytes()).and_then(|()| out.flush());
    }
}
