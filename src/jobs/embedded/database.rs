//! Rows of the embedded store in SQLite. With `deployment_rows` and `webhook_rows` the only file with SQL.
//!
//! Not the meaning of the queue: rows are written as the table has decided. WAL with `synchronous=FULL`: a committed
//! transaction is on the disk (<https://www.sqlite.org/pragma.html#pragma_synchronous>).

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use infergate_core::AccountId;
use infergate_core::job::{
    DeployableKey, EndReason, JobDefinition, JobId, JobKind, JobOutcome, JobPosition, JobProgress,
    JobState, JobTable, StoreTime, WorkerId, WriteResult, judge_write,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params, params_from_iter};

use super::schema::{STEPS, VERSION};
use crate::files::FileId;
use crate::jobs::request::{INPUT_FILE_BYTES, InputFile};
use crate::jobs::store::{
    EndRecord, FormerSubmit, IdempotencyKey, JobListing, ListedJobs, PendingEvent, RemovedJob,
    StoredJob,
};

/// Wait for the lock of another connection: readers never hold it for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pages of the write-ahead log after which it is copied into the file, 4 KiB each.
const CHECKPOINT_PAGES: i64 = 2000;
/// Statements that stay prepared.
const STATEMENTS_MAX: usize = 64;

/// Columns of a job as [`read_job`] reads them. An ended one is not live.
const JOB: &str = "SELECT jobs.place, definition, ifnull(ends.progress, live.progress),
    ifnull(ends.state, live.state), reason, ended, payload, result
    FROM jobs LEFT JOIN live USING (place) LEFT JOIN ends USING (place)";

/// Connection to the database.
pub(super) struct Database {
    pub(super) connection: Connection,
    /// Rows of the jobs that have not ended, which spares looking each of their ids up with every write. Filled where the
    /// table is read; after a transaction that failed both are read again.
    live_places: HashMap<JobId, i64>,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Writes, and makes the tables where there are none. A single connection at a time.
    Write,
    /// Reads what is committed.
    Read,
}

/// Rows whose time was over.
pub(super) struct RemovedRows {
    /// Number of jobs.
    pub jobs: usize,
    /// Files of their inputs.
    pub files: Vec<FileId>,
    /// Place where the removal goes on; none where there are no more.
    pub next: Option<StoreTime>,
}

/// Idempotency key that was used before.
pub(super) struct UsedKey {
    pub digest: Vec<u8>,
    pub job: JobId,
}

impl UsedKey {
    /// Returns the submit that the key was used for, compared with another one.
    pub fn as_former(&self, key: &IdempotencyKey) -> FormerSubmit {
        FormerSubmit {
            job: self.job,
            is_same: *self.digest == key.digest,
        }
    }
}

type SqlResult<T> = rusqlite::Result<T>;

impl Database {
    pub fn open(path: &Path, access: Access) -> SqlResult<Database> {
        let flags = match access {
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let connection =
            Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        let mut database = Database {
            connection,
            live_places: HashMap::new(),
        };
        if access == Access::Write {
            database.prepare_file()?;
        }
        Ok(database)
    }

    fn prepare_file(&mut self) -> SqlResult<()> {
        let set = |name: &str, value: Value| self.connection.pragma_update(None, name, value);
        // Before anything is written: later it would have no effect.
        set("auto_vacuum", Value::Text("incremental".to_owned()))?;
        set("journal_mode", Value::Text("wal".to_owned()))?;
        set("synchronous", Value::Text("full".to_owned()))?;
        set("wal_autocheckpoint", Value::Integer(CHECKPOINT_PAGES))?;
        let version: i64 = self
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))?;
        let made = usize::try_from(version).ok();
        if let Some(missing) = made.and_then(|made| STEPS.get(made..)) {
            let transaction = self.connection.transaction()?;
            for step in missing {
                transaction.execute_batch(step)?;
            }
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        } else {
            return Err(failure(&format!(
                "the file has version {version}, this program reads {VERSION}"
            )));
        }
        Ok(())
    }

    /// Copies the write-ahead log into the file and empties it. A failure leaves it as it is.
    pub fn truncate_log(&self) {
        let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
        let _ = self.connection.query_row(truncate, [], |_| Ok(()));
    }

    /// Bounds the pages of the file, as a full disk does.
    #[cfg(test)]
    pub fn limit_pages(&self, settings: &super::EmbeddedSettings) {
        let most = settings
            .pages_max
            .load(std::sync::atomic::Ordering::Relaxed);
        let most = if most == 0 {
            u64::from(u32::MAX) - 1
        } else {
            most
        };
        let limit = format!("PRAGMA max_page_count = {most}");
        self.connection.query_row(&limit, [], |_| Ok(())).unwrap();
    }

    pub fn begin(&self) -> SqlResult<()> {
        self.connection
            .prepare_cached("BEGIN IMMEDIATE")?
            .execute([])?;
        Ok(())
    }

    pub fn commit(&self) -> SqlResult<()> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    pub fn roll_back(&self) {
        // Nothing is open where the commit itself has rolled back.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    /// Reads every job that has not ended, in the order of submits, into a table.
    pub fn restore_table(&mut self, now: StoreTime) -> SqlResult<JobTable> {
        let mut table = JobTable::new();
        self.live_places.clear();
        let sql = "SELECT definition, progress, live.place FROM live JOIN jobs USING (place)
                   ORDER BY live.place";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let definition: JobDefinition = json_column(row, 0)?;
            self.live_places.insert(definition.id, row.get(2)?);
            table.restore(definition, json_column(row, 1)?, now);
        }
        let mut statement = self
            .connection
            .prepare_cached("SELECT deployable FROM paused")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let key: String = row.get(0)?;
            table.set_paused(&DeployableKey::from(&*key), true);
        }
        Ok(table)
    }

    pub fn insert_job(
        &mut self,
        definition: &JobDefinition,
        progress: &JobProgress,
        payload: &[u8],
    ) -> SqlResult<()> {
        let sql = "INSERT INTO jobs (id, account, kind, definition, payload)
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let place = self.connection.prepare_cached(sql)?.insert(params![
            definition.id.as_str(),
            definition.account.as_str(),
            definition.kind.name(),
            json_text(definition)?,
            payload,
        ])?;
        let sql = "INSERT INTO live (place, state, progress) VALUES (?1, ?2, ?3)";
        self.connection.prepare_cached(sql)?.execute(params![
            place,
            progress.state().name(),
            json_text(progress)?,
        ])?;
        self.live_places.insert(definition.id, place);
        Ok(())
    }

    /// Returns the row of a job that has not ended.
    fn live_place(&self, id: &JobId) -> SqlResult<i64> {
        let place = self.live_places.get(id).copied();
        place.ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    pub fn contains_job(&self, id: &JobId) -> SqlResult<bool> {
        let sql = "SELECT 1 FROM jobs WHERE id = ?1";
        self.connection.prepare_cached(sql)?.exists([id.as_str()])
    }

    pub fn update_progress(&self, id: &JobId, progress: &JobProgress) -> SqlResult<()> {
        let sql = "UPDATE live SET progress = ?2, state = ?3 WHERE place = ?1";
        self.connection.prepare_cached(sql)?.execute(params![
            self.live_place(id)?,
            json_text(progress)?,
            progress.state().name()
        ])?;
        Ok(())
    }

    /// Writes an end with its result, its event and its webhook.
    pub fn write_end(
        &mut self,
        outcome: &JobOutcome,
        record: &EndRecord,
        expires: StoreTime,
    ) -> SqlResult<()> {
        let definition = &*outcome.definition;
        let place = self.live_place(&definition.id)?;
        let sql = "DELETE FROM live WHERE place = ?1";
        self.connection.prepare_cached(sql)?.execute([place])?;
        let sql =
            "INSERT INTO ends (place, state, progress, reason, ended, expires, result, by_worker)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        self.connection.prepare_cached(sql)?.execute(params![
            place,
            outcome.state.name(),
            json_text(&outcome.progress)?,
            outcome.reason.map(EndReason::code),
            as_sql(outcome.ended),
            as_sql(expires),
            &record.result[..],
            outcome.by_worker,
        ])?;
        if !record.event.is_empty() {
            let sql = "INSERT INTO events (line) VALUES (?1)";
            self.connection
                .prepare_cached(sql)?
                .execute([&record.event[..]])?;
        }
        if definition.has_webhook {
            let sql = "INSERT INTO webhooks (id, job, due, attempts, is_dead, last_result)
                       VALUES (?1, ?2, ?3, 0, 0, '')";
            self.connection.prepare_cached(sql)?.execute(params![
                format!("{}-completed", definition.id),
                definition.id.as_str(),
                as_sql(outcome.ended),
            ])?;
        }
        self.live_places.remove(&definition.id);
        Ok(())
    }

    /// Judges a write of a worker to a job that the table does not know any more.
    pub fn judge_ended(&self, id: &JobId, worker: &WorkerId, epoch: u32) -> SqlResult<WriteResult> {
        let sql = "SELECT ends.state, ends.progress FROM jobs JOIN ends USING (place)
                   WHERE id = ?1 AND by_worker = 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, json_column(row, 1)?));
        let found = statement.query_row([id.as_str()], read).optional()?;
        let Some((state, progress)): Option<(String, JobProgress)> = found else {
            return Ok(WriteResult::Stale);
        };
        let position = JobPosition {
            state: state_named(&state)?,
            epoch: progress.epoch,
            worker: progress.owner.as_ref().map(|owner| &owner.worker),
        };
        Ok(judge_write(position, worker, epoch))
    }

    /// Returns the request of a job that has not ended.
    pub fn live_payload(&self, id: &JobId) -> SqlResult<Bytes> {
        let sql = "SELECT payload FROM jobs WHERE place = ?1";
        let payload: Option<Vec<u8>> = self
            .connection
            .prepare_cached(sql)?
            .query_row([self.live_place(id)?], |row| row.get(0))
            .optional()?;
        Ok(payload.unwrap_or_default().into())
    }

    pub fn job(&self, id: &JobId) -> SqlResult<Option<StoredJob>> {
        let sql = format!("{JOB} WHERE id = ?1");
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.query_row([id.as_str()], read_job).optional()
    }

    /// Returns what the key of a removed job knows of it.
    pub fn removed_job(&self, id: &JobId) -> SqlResult<Option<RemovedJob>> {
        let sql = "SELECT removed FROM keys WHERE job = ?1 AND removed IS NOT NULL";
        let mut statement = self.connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| json_column(row, 0);
        statement.query_row([id.as_str()], read).optional()
    }

    pub fn list(&self, listing: &JobListing) -> SqlResult<ListedJobs> {
        let mut sql = format!("{JOB} WHERE jobs.place < ?1");
        let mut values = vec![Value::Integer(listing.before.unwrap_or(i64::MAX))];
        let account = listing.account.as_ref().map(AccountId::as_str);
        let kind = listing.kind.map(JobKind::name);
        let state = listing.state.map(JobState::name);
        let present = "ifnull(ends.state, live.state)";
        for (column, text) in [("account", account), ("kind", kind), (present, state)] {
            if let Some(text) = text {
                values.push(Value::Text(text.to_owned()));
                sql.push_str(&format!(" AND {column} = ?{}", values.len()));
            }
        }
        if let Some(model) = &listing.model {
            values.push(Value::Text(model.as_str().to_owned()));
            let place = values.len();
            sql.push_str(&format!(" AND definition ->> 'model' = ?{place}"));
        }
        // One more tells whether there are others behind them.
        let rows_max = listing.limit.saturating_add(1);
        values.push(Value::Integer(i64::try_from(rows_max).unwrap_or(i64::MAX)));
        sql.push_str(&format!(
            " ORDER BY jobs.place DESC LIMIT ?{}",
            values.len()
        ));
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(values), read_job)?;
        ListedJobs::gather(rows, listing.limit)
    }

    /// Returns how an idempotency key was used before `now` was its end.
    pub fn used_key(&self, account: &str, key: &str, now: StoreTime) -> SqlResult<Option<UsedKey>> {
        let sql = "SELECT digest, job FROM keys WHERE account = ?1 AND key = ?2 AND expires > ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| {
            let digest = row.get(0)?;
            Ok(UsedKey {
                digest,
                job: parsed(row, 1)?,
            })
        };
        statement
            .query_row(params![account, key, as_sql(now)], read)
            .optional()
    }

    pub fn insert_key(
        &self,
        account: &str,
        key: &IdempotencyKey,
        job: &JobId,
        expires: StoreTime,
    ) -> SqlResult<()> {
        let sql = "INSERT OR REPLACE INTO keys (account, key, digest, job, expires)
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        self.connection.prepare_cached(sql)?.execute(params![
            account,
            &*key.key,
            &key.digest[..],
            job.as_str(),
            as_sql(expires)
        ])?;
        Ok(())
    }

    pub fn set_paused(&self, key: &DeployableKey, is_paused: bool) -> SqlResult<()> {
        let sql = match is_paused {
            true => "INSERT OR REPLACE INTO paused (deployable) VALUES (?1)",
            false => "DELETE FROM paused WHERE deployable = ?1",
        };
        self.connection
            .prepare_cached(sql)?
            .execute([key.as_str()])?;
        Ok(())
    }

    pub fn pending_events(&self, limit: usize) -> SqlResult<Vec<PendingEvent>> {
        let sql = "SELECT place, line FROM events ORDER BY place LIMIT ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| {
            let line: Vec<u8> = row.get(1)?;
            Ok(PendingEvent {
                place: row.get(0)?,
                line: line.into(),
            })
        };
        statement
            .query_map([i64::try_from(limit).unwrap_or(i64::MAX)], read)?
            .collect()
    }

    pub fn delete_events(&self, places: &[i64]) -> SqlResult<()> {
        let mut statement = self
            .connection
            .prepare_cached("DELETE FROM events WHERE place = ?1")?;
        for place in places {
            statement.execute([place])?;
        }
        Ok(())
    }

    /// Removes ended jobs whose time is over and that no live delivery needs, and used keys; at most `limit` each. A dead
    /// letter has put off the time of its job.
    /// Rows that expired before `from` were looked at.
    pub fn remove_expired(
        &self,
        limit: usize,
        from: StoreTime,
        now: StoreTime,
    ) -> SqlResult<RemovedRows> {
        let count = limit;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let expired = "SELECT ends.place, expires FROM ends JOIN jobs USING (place)
                       WHERE expires >= ?3 AND expires <= ?1 AND NOT EXISTS
                           (SELECT 1 FROM webhooks WHERE webhooks.job = jobs.id AND is_dead = 0)
                       ORDER BY expires LIMIT ?2";
        let found: Vec<(i64, i64)> = self
            .connection
            .prepare_cached(expired)?
            .query_map(params![as_sql(now), limit, as_sql(from)], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<SqlResult<_>>()?;
        let last = found
            .last()
            .map_or(from, |(_, at)| StoreTime(at.unsigned_abs()));
        let places = found.iter().map(|(place, _)| *place);
        let steps = [
            "UPDATE keys SET removed = (SELECT json_object(
                 'state', state, 'reason', reason, 'created', definition -> 'created',
                 'started', progress -> 'started', 'ended', ended, 'epoch', progress -> 'epoch')
             FROM jobs JOIN ends USING (place) WHERE jobs.place = ?1)
             WHERE job = (SELECT id FROM jobs WHERE place = ?1)",
            "DELETE FROM ends WHERE place = ?1",
        ];
        for step in steps {
            let mut statement = self.connection.prepare_cached(step)?;
            for place in places.clone() {
                statement.execute([place])?;
            }
        }
        let jobs = "DELETE FROM jobs WHERE place = ?1 RETURNING substr(payload, 1, ?2)";
        let mut statement = self.connection.prepare_cached(jobs)?;
        let mut files = Vec::new();
        for place in places {
            let begin = statement
                .query_row(params![place, INPUT_FILE_BYTES as i64], |row| {
                    row.get::<_, Vec<u8>>(0)
                })
                .optional()?;
            files.extend(begin.as_deref().and_then(InputFile::id_of));
        }
        let keys = "DELETE FROM keys WHERE (account, key) IN
                    (SELECT account, key FROM keys WHERE expires <= ?1 LIMIT ?2)";
        let mut statement = self.connection.prepare_cached(keys)?;
        let keys = statement.execute(params![as_sql(now), limit])?;
        let is_full = found.len() == count || keys == count;
        Ok(RemovedRows {
            jobs: found.len(),
            files,
            next: is_full.then_some(last),
        })
    }

    /// Gives free pages back to the file system, a bounded number of them.
    pub fn shrink(&self) -> SqlResult<()> {
        self.connection
            .execute_batch("PRAGMA incremental_vacuum(256)")
    }
}

fn failure(message: &str) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(message.into())
}

/// Store times fit: SQLite's integers end in the year 292 million.
pub(super) fn as_sql(at: StoreTime) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

pub(super) fn json_text<T: serde::Serialize>(value: &T) -> SqlResult<String> {
    serde_json::to_string(value).map_err(|error| failure(&error.to_string()))
}

pub(super) fn json_column<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    index: usize,
) -> SqlResult<T> {
    let text: String = row.get(index)?;
    serde_json::from_str(&text).map_err(|error| failure(&error.to_string()))
}

pub(super) fn parsed(row: &Row<'_>, index: usize) -> SqlResult<JobId> {
    let text: String = row.get(index)?;
    text.parse()
        .map_err(|_| failure("an id in the file is none"))
}

fn state_named(name: &str) -> SqlResult<JobState> {
    let found = JobState::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| failure("a state in the file is none"))
}

fn read_job(row: &Row<'_>) -> SqlResult<StoredJob> {
    let (state, reason): (String, Option<String>) = (row.get(3)?, row.get(4)?);
    let ended: Option<i64> = row.get(5)?;
    let (payload, result): (Vec<u8>, Option<Vec<u8>>) = (row.get(6)?, row.get(7)?);
    let reason = reason.and_then(|code| {
        EndReason::ALL
            .into_iter()
            .find(|known| known.code() == code)
    });
    Ok(StoredJob {
        place: row.get(0)?,
        definition: json_column(row, 1)?,
        progress: json_column(row, 2)?,
        state: state_named(&state)?,
        reason,
        ended: ended.map(|at| StoreTime(at.unsigned_abs())),
        payload: payload.into(),
        result: result.map(Bytes::from),
        is_data_removed: false,
    })
}
