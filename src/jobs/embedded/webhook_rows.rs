//! Outbox of webhooks as rows of the embedded store: deliveries that wait, and dead letters.
//!
//! Not the schedule of attempts, nor their order. A delivery that waits keeps the record of its job. A dead letter puts
//! off its removal by [`DEAD_LETTER_KEPT`], so that the letter can be sent by hand; later the letter is listed alone. The
//! newest [`DEAD_LETTERS_MAX`] are kept.

use infergate_core::Millis;
use infergate_core::job::{JobId, StoreTime};
use rusqlite::{OptionalExtension, Result as SqlResult, Row, params};

use super::database::{Database, as_sql, parsed};
use crate::jobs::store::{PendingWebhook, SettlementResult, WebhookSettlement};

/// Time that the record of a job is kept for its dead letter: a week has a working day in it.
pub const DEAD_LETTER_KEPT: Millis = Millis::from_secs(7 * 24 * 3600);
/// Dead letters that are kept for operators; as many as may wait of one account.
pub const DEAD_LETTERS_MAX: usize = 10_000;

/// Columns of an entry as [`read_webhook`] reads them.
const WEBHOOK: &str = "SELECT place, id, job, due, attempts, is_dead, last_result,
    EXISTS (SELECT 1 FROM jobs WHERE jobs.id = webhooks.job) FROM webhooks";

/// Dead letter that is not kept any more.
pub struct DroppedLetter {
    pub id: String,
    pub last_result: String,
}

/// Returns live deliveries after `place`, with the place of the last one.
pub fn webhooks_after(
    database: &Database,
    place: i64,
    limit: usize,
) -> SqlResult<Vec<(i64, PendingWebhook)>> {
    let sql = format!("{WEBHOOK} WHERE place > ?1 AND is_dead = 0 ORDER BY place LIMIT ?2");
    let mut statement = database.connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![place, as_limit(limit)], read_webhook)?;
    rows.collect()
}

/// Returns deliveries that wait, or dead letters, newest first.
pub fn webhooks(
    database: &Database,
    is_dead: bool,
    limit: usize,
) -> SqlResult<Vec<PendingWebhook>> {
    let sql = format!("{WEBHOOK} WHERE is_dead = ?1 ORDER BY place DESC LIMIT ?2");
    let mut statement = database.connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![is_dead, as_limit(limit)], read_webhook)?;
    rows.map(|row| row.map(|(_, webhook)| webhook)).collect()
}

/// Writes the result of an attempt, or the wish of an operator.
pub fn settle_webhook(
    database: &Database,
    id: &str,
    settlement: &WebhookSettlement,
    result: &str,
    now: StoreTime,
) -> SqlResult<SettlementResult> {
    let sql = format!("{WEBHOOK} WHERE id = ?1");
    let found: Option<(i64, PendingWebhook)> = database
        .connection
        .prepare_cached(&sql)?
        .query_row([id], read_webhook)
        .optional()?;
    let Some((place, entry)) = found else {
        return Ok(SettlementResult::NoEntry);
    };
    match settlement {
        WebhookSettlement::Delivered => {
            let sql = "DELETE FROM webhooks WHERE place = ?1";
            database.connection.prepare_cached(sql)?.execute([place])?;
        }
        WebhookSettlement::RetryAt(at) => {
            let sql = "UPDATE webhooks SET attempts = attempts + 1, last_result = ?3, due = ?2
                       WHERE place = ?1";
            let values = params![place, as_sql(*at), result];
            database.connection.prepare_cached(sql)?.execute(values)?;
        }
        WebhookSettlement::Dead => {
            let sql = "UPDATE webhooks SET attempts = attempts + 1, last_result = ?2, is_dead = 1
                       WHERE place = ?1";
            let values = params![place, result];
            database.connection.prepare_cached(sql)?.execute(values)?;
            keep_job(database, &entry.job, now + DEAD_LETTER_KEPT)?;
        }
        WebhookSettlement::Displaced => {
            let sql = "UPDATE webhooks SET last_result = ?2, is_dead = 1 WHERE place = ?1";
            let values = params![place, result];
            database.connection.prepare_cached(sql)?.execute(values)?;
        }
        WebhookSettlement::Revived(_) if !entry.is_dead => return Ok(SettlementResult::NoEntry),
        WebhookSettlement::Revived(_) if !entry.has_job => return Ok(SettlementResult::NoJob),
        WebhookSettlement::Revived(at) => {
            let sql = "UPDATE webhooks SET attempts = 0, is_dead = 0, last_result = ?3, due = ?2
                       WHERE place = ?1";
            let values = params![place, as_sql(*at), result];
            database.connection.prepare_cached(sql)?.execute(values)?;
        }
    }
    Ok(SettlementResult::Done)
}

/// Drops the oldest dead letters beyond `kept`, at most `limit`. The records of their jobs, which end up to `keep` after
/// the jobs, are not held for them any more.
pub fn drop_letters(
    database: &Database,
    (kept, limit): (usize, usize),
    keep: Millis,
) -> SqlResult<Vec<DroppedLetter>> {
    let sql = format!("{WEBHOOK} WHERE is_dead = 1 ORDER BY place DESC LIMIT ?1 OFFSET ?2");
    let mut statement = database.connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![as_limit(limit), as_limit(kept)], read_webhook)?;
    let dropped: Vec<(i64, PendingWebhook)> = rows.collect::<SqlResult<_>>()?;
    let mut delete = database
        .connection
        .prepare_cached("DELETE FROM webhooks WHERE place = ?1")?;
    let mut release = database.connection.prepare_cached(
        "UPDATE ends SET expires = min(expires, ended + ?2)
         WHERE place = (SELECT place FROM jobs WHERE id = ?1)",
    )?;
    let keep = i64::try_from(keep.0).unwrap_or(i64::MAX);
    let mut letters = Vec::with_capacity(dropped.len());
    for (place, letter) in dropped {
        delete.execute([place])?;
        release.execute(params![letter.job.as_str(), keep])?;
        letters.push(DroppedLetter {
            id: letter.id.to_string(),
            last_result: letter.last_result.to_string(),
        });
    }
    Ok(letters)
}

/// Puts off the removal of an ended job.
fn keep_job(database: &Database, job: &JobId, until: StoreTime) -> SqlResult<()> {
    let sql = "UPDATE ends SET expires = max(expires, ?2)
               WHERE place = (SELECT place FROM jobs WHERE id = ?1)";
    let values = params![job.as_str(), as_sql(until)];
    database.connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn as_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn read_webhook(row: &Row<'_>) -> SqlResult<(i64, PendingWebhook)> {
    let (id, due, last): (String, i64, String) = (row.get(1)?, row.get(3)?, row.get(6)?);
    let webhook = PendingWebhook {
        id: id.into(),
        job: parsed(row, 2)?,
        due: StoreTime(due.unsigned_abs()),
        attempts: row.get(4)?,
        is_dead: row.get(5)?,
        last_result: last.into(),
        has_job: row.get(7)?,
    };
    Ok((row.get(0)?, webhook))
}

#[cfg(test)]
mod tests {
    use infergate_core::job::{JobOutcome, JobProgress, JobState};

    use super::super::database::Access;
    use super::*;
    use crate::jobs::conformance;
    use crate::jobs::store::EndRecord;

    const DAY: Millis = Millis::from_secs(24 * 3600);
    const NOW: StoreTime = StoreTime(1_700_000_000_000);
    /// Time that jobs are kept here.
    const KEEP: Millis = Millis::from_secs(60);

    /// A file with `count` ended jobs, each with a webhook that waits.
    fn database(count: u64) -> (tempfile::TempDir, Database) {
        let folder = tempfile::tempdir().unwrap();
        let mut database = Database::open(&folder.path().join("f"), Access::Write).unwrap();
        for number in 0..count {
            let mut definition = conformance::job(number, "a", NOW).job.definition;
            definition.has_webhook = true;
            let progress = JobProgress::default();
            database.insert_job(&definition, &progress, b"{}").unwrap();
            let outcome = JobOutcome {
                definition: definition.into(),
                progress,
                state: JobState::Succeeded,
                reason: None,
                ended: NOW,
                by_worker: true,
            };
            let record = EndRecord::default();
            database.write_end(&outcome, &record, NOW + KEEP).unwrap();
        }
        (folder, database)
    }

    fn webhook_id(number: u64) -> String {
        format!("{}-completed", conformance::id(number))
    }

    fn settle(
        database: &Database,
        number: u64,
        settlement: WebhookSettlement,
        now: StoreTime,
    ) -> SettlementResult {
        settle_webhook(database, &webhook_id(number), &settlement, "500", now).unwrap()
    }

    fn has_job(database: &Database, number: u64, now: StoreTime) -> bool {
        database
            .remove_expired(100, StoreTime::default(), now)
            .unwrap();
        database.job(&conformance::id(number)).unwrap().is_some()
    }

    #[test]
    fn a_dead_letter_can_be_sent_by_hand_for_a_week_and_is_listed_alone_afterwards() {
        let (_folder, database) = database(1);
        // All attempts of the schedule take 76 hours.
        let died = NOW + Millis::from_secs(76 * 3600);
        assert!(has_job(&database, 0, died));
        settle(&database, 0, WebhookSettlement::Dead, died);
        assert!(has_job(&database, 0, died + Millis(6 * DAY.0)));
        let revived = WebhookSettlement::Revived(died + Millis(6 * DAY.0));
        assert_eq!(
            settle(&database, 0, revived.clone(), died),
            SettlementResult::Done
        );
        assert_eq!(
            settle(&database, 0, revived.clone(), died),
            SettlementResult::NoEntry
        );
        settle(&database, 0, WebhookSettlement::Dead, died);
        assert!(!has_job(&database, 0, died + DEAD_LETTER_KEPT));
        assert_eq!(settle(&database, 0, revived, died), SettlementResult::NoJob);
        let listed = webhooks(&database, true, 10).unwrap();
        assert!(listed[0].is_dead && !listed[0].has_job);
    }

    #[test]
    fn a_letter_that_was_displaced_keeps_no_job_longer() {
        let (_folder, database) = database(1);
        settle(&database, 0, WebhookSettlement::Displaced, NOW);
        assert!(has_job(&database, 0, NOW));
        assert!(!has_job(&database, 0, NOW + KEEP));
        let listed = webhooks(&database, true, 10).unwrap();
        assert_eq!((listed.len(), listed[0].attempts), (1, 0));
    }

    #[test]
    fn letters_beyond_the_bound_are_named_and_keep_no_job() {
        let (_folder, database) = database(4);
        for number in 0..4 {
            settle(&database, number, WebhookSettlement::Dead, NOW);
        }
        let dropped = drop_letters(&database, (2, 1), KEEP).unwrap();
        assert_eq!(dropped.len(), 1);
        let dropped = drop_letters(&database, (2, 10), KEEP).unwrap();
        assert_eq!(
            (&*dropped[0].id, &*dropped[0].last_result),
            (&*webhook_id(0), "500")
        );
        assert!(drop_letters(&database, (2, 10), KEEP).unwrap().is_empty());
        let has = |number| has_job(&database, number, NOW + KEEP);
        assert_eq!([0, 1, 2, 3].map(has), [false, false, true, true]);
    }
}
