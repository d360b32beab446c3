//! The figures, as a table for people and as JSON for programs.

use std::{fs, path::Path};

use serde::Serialize;

/// One figure.
#[derive(Serialize)]
pub(crate) struct Figure {
    /// What was done meanwhile.
    of: String,
    /// What was measured.
    what: String,
    value: f64,
    unit: &'static str,
    /// At most this much was aimed at.
    #[serde(skip_serializing_if = "Option::is_none")]
    aim: Option<f64>,
    /// Whether it depends on the machine's mood. One that doesn't and misses its aim fails the run.
    noisy: bool,
}

/// All figures, in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Table(Vec<Figure>);

impl Table {
    /// Adds a figure, and shows it.
    pub(crate) fn add(&mut self, of: &str, what: impl Into<String>, value: f64, unit: &'static str) {
        self.push(of, what, (value, unit), None, true);
    }

    /// Adds a figure that should be at most `aim`.
    pub(crate) fn add_with_aim(
        &mut self,
        of: &str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        aim: f64,
    ) {
        self.push(of, what, (value, unit), Some(aim), true);
    }

    /// Adds a count that must be at most `aim` on any machine.
    pub(crate) fn add_count(
        &mut self,
        of: &str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        aim: f64,
    ) {
        self.push(of, what, (value, unit), Some(aim), false);
    }

    fn push(
        &mut self,
        of: &str,
        what: impl Into<String>,
        (value, unit): (f64, &'static str),
        aim: Option<f64>,
        noisy: bool,
    ) {
        let figure = Figure { of: of.to_owned(), what: what.into(), value, unit, aim, noisy };
        println!("    {}", figure.line());
        self.0.push(figure);
    }

    /// Prints everything as Markdown, and writes it to a file as JSON, one figure a line, if there is one.
    pub(crate) fn finish(&self, file: Option<&Path>) -> std::io::Result<()> {
        println!("\n| | | | aim |\n|---|---|---|---|");
        let mut before = "";
        for figure in &self.0 {
            let of = if figure.of == before { "" } else { &figure.of };
            println!("| {of} | {} | {} | {} |", figure.what, figure.amount(figure.value), figure.verdict());
            before = &figure.of;
        }
        let Some(file) = file else { return Ok(()) };
        let lines = self.0.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        fs::write(file, lines.join("\n") + "\n")
    }

    /// Counts that are above what they may be.
    pub(crate) fn broken(&self) -> usize {
        self.0.iter().filter(|figure| !figure.noisy && figure.is_missed()).count()
    }
}

impl Figure {
    fn is_missed(&self) -> bool {
        self.aim.is_some_and(|aim| self.value > aim)
    }

    fn amount(&self, value: f64) -> String {
        let unit = self.unit;
        match unit {
            "" if value.fract() == 0.0 => format!("{value:.0}"),
            "" => format!("{value:.2}"),
            "ms" | "µs" | "MB" | "%" => format!("{value:.1} {unit}"),
            _ => format!("{value:.2} {unit}"),
        }
    }

    fn verdict(&self) -> String {
        match self.aim {
            None => String::new(),
            Some(aim) if self.is_missed() => format!("**missed**: {}", self.amount(aim)),
            Some(aim) => format!("≤ {}", self.amount(aim)),
        }
    }

    fn line(&self) -> String {
        format!("{}: {}: {} {}", self.of, self.what, self.amount(self.value), self.verdict())
    }
}
