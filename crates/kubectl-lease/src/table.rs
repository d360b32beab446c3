//! Tables of aligned columns.

use anstyle::Style;

use crate::style::styled;

/// The space between columns.
const GAP: usize = 3;

/// One field of a table.
#[derive(Clone, Debug)]
pub(crate) struct TableCell {
    text: String,
    style: Style,
}

impl TableCell {
    /// A text, or a dash if it is empty.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text: if text.is_empty() { "-".to_owned() } else { text }, style: Style::new() }
    }

    /// A number, or a dash.
    pub(crate) fn number(number: Option<i64>) -> Self {
        Self::new(number.map(|number| number.to_string()).unwrap_or_default())
    }

    pub(crate) fn with_style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Rows with a header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<TableCell>,
    rows: Vec<Vec<TableCell>>,
}

impl Table {
    pub(crate) fn new(columns: Vec<&'static str>) -> Self {
        Self { header: columns.into_iter().map(TableCell::new).collect(), rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: Vec<TableCell>) {
        self.rows.push(row);
    }

    /// The header and the rows.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let widths = self.widths();
        [&self.header].into_iter().chain(&self.rows).map(move |row| line(row, &widths))
    }

    /// The width of each column.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let cells = |i: usize| self.rows.iter().filter_map(move |row| row.get(i));
        let width = |(i, name): (usize, &TableCell)| {
            cells(i).map(TableCell::width).fold(name.width(), std::cmp::Ord::max)
        };
        self.header.iter().enumerate().map(width).collect()
    }
}

/// A row whose columns have at least these widths.
pub(crate) fn line(row: &[TableCell], widths: &[usize]) -> String {
    let mut line = String::new();
    for (i, cell) in row.iter().enumerate() {
        line += &if cell.style.is_plain() { cell.text.clone() } else { styled(&cell.text, cell.style) };
        if i + 1 < row.len() {
            let width = widths.get(i).copied().unwrap_or(0);
            line += &" ".repeat(width.saturating_sub(cell.width()) + GAP);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_wide_as_its_widest_cell() {
        let mut table = Table::new(vec!["NAME", "TTL"]);
        table.push(vec![TableCell::new("a-long-name"), TableCell::new("30s")]);
        table.push(vec![TableCell::new("ü"), TableCell::new("")]);
        assert_eq!(table.widths(), [11, 3]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines, ["NAME          TTL", "a-long-name   30s", "ü             -"]);
    }

    #[test]
    fn styles_do_not_count_for_the_alignment() {
        let row = [TableCell::new("ab").with_style(crate::style::RED), TableCell::new("c")];
        assert_eq!(line(&row, &[2, 1]), "\u{1b}[31mab\u{1b}[0m   c");
    }
}
