//! Styles of text on a terminal.

use std::fmt;

use anstyle::{AnsiColor, Style};

pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const DIMMED: Style = Style::new().dimmed();

/// A text with the control sequences of a style.
pub(crate) fn styled(text: impl fmt::Display, style: Style) -> String {
    format!("{style}{text}{style:#}")
}
