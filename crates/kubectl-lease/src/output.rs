//! How things are shown: tables, colours, and the formats that kubectl has.

use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use lessor_api::Lease;
use lessor_client::{Reading, State};
use serde_json::{Value, json};

use crate::{duration::short, error::Outcome};

/// `-o`.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Output {
    /// How to show it
    #[arg(long, short, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// A format.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For people with wide terminals
    Wide,
    /// The objects as JSON
    Json,
    /// The objects as YAML
    Yaml,
    /// Only names, to be given to other commands
    Name,
}

/// Colours, where there's a terminal to show them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
    Dim,
}

/// Where results go: standard output, with or without colours.
pub(crate) struct Screen {
    out: io::StdoutLock<'static>,
    colours: bool,
}

impl Screen {
    /// Standard output. Colours only on a terminal whose user hasn't refused them (<https://no-color.org>).
    pub(crate) fn new() -> Self {
        let out = io::stdout().lock();
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { colours: out.is_terminal() && !refused, out }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.out, "{}", line.as_ref())?;
        // Whoever reads through a pipe shall see each line when it's written.
        self.out.flush()
    }

    /// Writes without ending the line.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        write!(self.out, "{text}")?;
        self.out.flush()
    }

    /// A text in a colour.
    pub(crate) fn paint(&self, text: &str, colour: Option<Colour>) -> String {
        let code = match colour {
            Some(colour) if self.colours => match colour {
                Colour::Green => 32,
                Colour::Yellow => 33,
                Colour::Red => 31,
                Colour::Dim => 2,
            },
            _ => return text.to_owned(),
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A value as JSON or YAML.
    pub(crate) fn value(&mut self, value: &Value, format: Format) -> Outcome {
        if format == Format::Yaml {
            let yaml = serde_saphyr::to_string(value).map_err(|error| io::Error::other(error.to_string()))?;
            return Ok(self.text(&yaml)?);
        }
        serde_json::to_writer_pretty(&mut self.out, value)?;
        Ok(self.line("")?)
    }

    /// A table.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        let widths = table.widths();
        self.row(&table.header(), &widths)?;
        for row in &table.rows {
            self.row(row, &widths)?;
        }
        Ok(())
    }

    /// A row of a table, of which columns are at least this wide.
    pub(crate) fn row(&mut self, row: &[Cell], widths: &[usize]) -> io::Result<()> {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = if i + 1 == row.len() { 0 } else { widths.get(i).copied().unwrap_or(0) + GAP };
            let padding = width.saturating_sub(cell.text.chars().count());
            line += &self.paint(&cell.text, cell.colour);
            line += &" ".repeat(padding);
        }
        self.line(line.trim_end())
    }
}

/// What separates columns.
const GAP: usize = 3;

/// One field of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    /// A text, or a dash where there's none.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text: if text.is_empty() { "-".to_owned() } else { text }, colour: None }
    }

    /// In a colour.
    pub(crate) fn coloured(self, colour: Option<Colour>) -> Self {
        Self { colour, ..self }
    }
}

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// No rows yet.
    pub(crate) fn new(columns: Vec<&'static str>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// One more row.
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    fn header(&self) -> Vec<Cell> {
        self.columns.iter().map(|name| Cell::new(*name)).collect()
    }

    /// How wide each column has to be.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.text.chars().count());
            cells.chain([self.columns[i].chars().count()]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }
}

/// The name of a lease as kubectl writes names.
pub(crate) fn full_name(name: &str) -> String {
    format!("lease.lessor.dev/{name}")
}

/// The name of an object, or nothing.
pub(crate) fn name_of(lease: &Lease) -> &str {
    lease.metadata.name.as_deref().unwrap_or_default()
}

/// The colour of a state.
pub(crate) fn colour_of(state: State) -> Colour {
    match state {
        State::Granted => Colour::Green,
        State::Pending | State::Suspended | State::Revoking => Colour::Yellow,
        State::Expired | State::Revoked => Colour::Red,
    }
}

/// What a lease is like in one sentence: `granted for 30s, 12s left, held by web-1`.
pub(crate) fn sentence(reading: &Reading) -> String {
    let mut parts = Vec::new();
    let ttl = reading.granted_ttl().map(short).unwrap_or_default();
    let left = reading.remaining().map(short);
    match (reading.state(), left) {
        (State::Pending, _) => parts.push("not granted yet".to_owned()),
        (State::Granted, left) => {
            parts.push(format!("granted for {ttl}"));
            parts.extend(left.map(|left| format!("{left} left")));
        }
        (State::Suspended, left) => {
            parts.push(format!("granted for {ttl}, suspended"));
            parts.extend(left.map(|left| format!("{left} left")));
        }
        (State::Revoking, _) => parts.push("being revoked".to_owned()),
        (state @ (State::Expired | State::Revoked), _) => {
            let end = reading.lease.status.as_ref().and_then(|status| status.end_time.as_ref());
            let ago = end.map(|end| {
                std::time::Duration::try_from(reading.now.duration_since(end.0)).unwrap_or_default()
            });
            let word = if state == State::Expired { "expired" } else { "revoked" };
            parts.push(ago.map_or_else(|| word.to_owned(), |ago| format!("{word} {} ago", short(ago))));
        }
    }
    parts.extend(follows(reading));
    parts.extend(reading.lease.spec.holder.as_ref().map(|holder| format!("held by {holder}")));
    parts.join(", ")
}

/// What a lease follows, and why that doesn't keep it alive, if it doesn't: `follows node/a in vain (SourceMissing)`.
fn follows(reading: &Reading) -> Option<String> {
    let source = reading.follows()?;
    let vain = reading.following().filter(|following| following.status != "True");
    Some(vain.map_or_else(
        || format!("follows {source}"),
        |following| format!("follows {source} in vain ({})", following.reason),
    ))
}

/// Objects as kubectl lists them.
pub(crate) fn list_of(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}

/// A lease as JSON, without what only servers read.
pub(crate) fn json_of(lease: &Lease) -> Outcome<Value> {
    let mut lease = lease.clone();
    lease.metadata.managed_fields = None;
    Ok(serde_json::to_value(lease)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_field() {
        let mut table = Table::new(vec!["NAME", "TTL"]);
        table.push(vec![Cell::new("a-long-name"), Cell::new("30s")]);
        table.push(vec![Cell::new("ü"), Cell::new("")]);
        assert_eq!(table.widths(), [11, 3]);
    }
}
