//! Tables for people: columns as wide as their widest cell, numbers to the right.

use std::io::{self, Write};

/// A table that is being filled.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with these column heads.
    pub(crate) fn new(heads: &[&str]) -> Table {
        Table { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row, which has as many cells as there are heads.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells);
    }

    /// Prints it.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let widest = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(widest).collect();
        // An address is none.
        let is_number =
            |cell: &String| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains(':');
        let numeric: Vec<bool> =
            (0..columns).map(|column| self.rows[1..].iter().all(|row| is_number(&row[column]))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                match numeric[column] {
                    true => line.push_str(&format!("{cell:>width$}  ")),
                    false => line.push_str(&format!("{cell:<width$}  ")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["topic", "next", "peer"]);
        table.row(["default", "7", "192.0.2.1:5"].map(str::to_owned));
        table.row(["x", "12345", "-"].map(str::to_owned));
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "topic     next  peer\ndefault      7  192.0.2.1:5\nx        12345  -\n"
        );
    }
}
