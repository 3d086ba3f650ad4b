//! The acceptance table: goal beside figure, one row a promise.
//! Not a test report: a row says what was seen, also when it is bad.
//!
//! Items add rows while they run; `close_books` adds item 9 from the ledgers of all stands.

use crate::stand::EventTotals;

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
    ledgers: Vec<EventTotals>,
}

struct Row {
    item: &'static str,
    what: String,
    goal: String,
    measured: String,
    met: bool,
}

impl Table {
    pub fn add(
        &mut self,
        item: &'static str,
        what: impl Into<String>,
        goal: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) {
        let row = Row {
            item,
            what: what.into(),
            goal: goal.into(),
            measured: measured.into(),
            met,
        };
        println!("{}", row.line());
        self.rows.push(row);
    }

    pub fn broke_off(&mut self, item: &str, error: &str) {
        self.add("–", item, "runs to its end", error, false);
    }

    /// Sent and recorded requests of a stand that has ended.
    pub fn keep(&mut self, ledger: EventTotals) {
        self.ledgers.push(ledger);
    }

    /// Item 9: every request has exactly one event, and the metrics parse.
    pub fn close_books(&mut self) {
        for ledger in std::mem::take(&mut self.ledgers) {
            self.add(
                "9",
                format!("{}: events = requests sent", ledger.stand),
                format!("{}", ledger.sent),
                format!("{}", ledger.events),
                ledger.sent == ledger.events,
            );
            self.add(
                "9",
                format!("{}: promtool check metrics", ledger.stand),
                "no complaint",
                ledger
                    .promtool
                    .as_deref()
                    .unwrap_or("not measured: promtool is not installed"),
                ledger
                    .promtool
                    .as_deref()
                    .is_none_or(|verdict| verdict == "ok"),
            );
            self.add(
                "9",
                format!("{}: SIGTERM with nothing in flight", ledger.stand),
                "exits 0 at once (≤ 2 s)",
                ledger.exit_text(),
                ledger.exited_well(),
            );
        }
    }

    pub fn all_met(&self) -> bool {
        self.rows.iter().all(|row| row.met)
    }

    pub fn print(&self) {
        println!("\n## Acceptance\n");
        println!("| item | what | goal | measured | verdict |\n|---|---|---|---|---|");
        for row in &self.rows {
            println!("{}", row.line());
        }
    }
}

impl Row {
    fn line(&self) -> String {
        let verdict = match self.met {
            _ if self.measured.starts_with("not measured") => "not measured",
            true => "met",
            false => "not met",
        };
        format!(
            "| {} | {} | {} | {} | {verdict} |",
            self.item, self.what, self.goal, self.measured
        )
    }
}
