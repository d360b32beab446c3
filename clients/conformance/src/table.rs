//! The results by scenario and client.

use std::fmt;

/// What one client made of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// All was right.
    Passed,
    /// Something wasn't.
    Failed(String),
    /// It doesn't apply.
    NotApplicable(String),
}

/// The results.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The clients, in order of columns.
    pub clients: Vec<String>,
    /// What happens in each scenario, and its results.
    pub rows: Vec<(&'static str, &'static str, Vec<Option<Cell>>)>,
}

impl Table {
    /// Whether no client failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    fn failures(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.rows.iter().flat_map(move |(scenario, _, cells)| {
            cells.iter().zip(&self.clients).filter_map(move |(cell, client)| match cell {
                Some(Cell::Failed(why)) => Some((*scenario, client.as_str(), why.as_str())),
                _ => None,
            })
        })
    }
}

impl fmt::Display for Table {
    /// In Markdown, and below it why what has failed has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| scenario | what happens | {} |", self.clients.join(" | "))?;
        writeln!(f, "|---|---|{}", "---|".repeat(self.clients.len()))?;
        let mut notes: Vec<&str> = Vec::new();
        for (scenario, about, cells) in &self.rows {
            write!(f, "| {scenario} | {about} |")?;
            for cell in cells {
                match cell {
                    Some(Cell::Passed) => write!(f, " pass |")?,
                    Some(Cell::Failed(_)) => write!(f, " **FAIL** |")?,
                    Some(Cell::NotApplicable(why)) => {
                        let known = notes.iter().position(|note| note == why);
                        let number = known.unwrap_or_else(|| {
                            notes.push(why);
                            notes.len() - 1
                        });
                        write!(f, " n/a ({}) |", number + 1)?;
                    }
                    None => write!(f, "  |")?,
                }
            }
            writeln!(f)?;
        }
        for (number, note) in notes.iter().enumerate() {
            writeln!(f, "\n({}) {note}", number + 1)?;
        }
        for (scenario, client, why) in self.failures() {
            writeln!(f, "\n{client} fails {scenario}: {why}")?;
        }
        Ok(())
    }
}
