//! Tables of the embedded store, step by step: a file gets the steps that it lacks.
//!
//! Not the queries. A step that a release has had is never changed.

/// Version of the present files: the number of the steps below.
pub(super) const VERSION: i64 = 4;
/// Steps from an empty file to the present one; the version of a file is the number of those it has had.
pub(super) const STEPS: [&str; VERSION as usize] = [FIRST, SECOND, THIRD, FOURTH];

const FIRST: &str = "
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    definition TEXT NOT NULL,
    progress TEXT NOT NULL,
    payload BLOB NOT NULL,
    reason TEXT,
    ended INTEGER,
    expires INTEGER,
    result BLOB
);
CREATE INDEX jobs_by_account ON jobs (account, kind, place);
CREATE INDEX jobs_live ON jobs (place) WHERE ended IS NULL;
CREATE INDEX jobs_by_expiry ON jobs (expires) WHERE expires IS NOT NULL;
CREATE TABLE events (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    line BLOB NOT NULL
);
CREATE TABLE webhooks (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    job TEXT NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    is_dead INTEGER NOT NULL,
    last_result TEXT NOT NULL
);
CREATE INDEX webhooks_by_job ON webhooks (job) WHERE is_dead = 0;
CREATE INDEX webhooks_dead ON webhooks (place) WHERE is_dead = 1;
CREATE TABLE keys (
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    job TEXT NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (account, key)
) WITHOUT ROWID;
CREATE INDEX keys_by_expiry ON keys (expires);
CREATE TABLE paused (deployable TEXT PRIMARY KEY) WITHOUT ROWID;
";

/// Deployments that accounts have made.
const SECOND: &str = "
CREATE TABLE deployments (
    name TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
";

/// What changes in the life of a job stands apart from its request: a take writes a few bytes, and an end its result.
/// Both wrote the row with the request again before. A key knows of its job what is asked for after the record is gone.
const THIRD: &str = "
CREATE TABLE live (
    place INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    progress TEXT NOT NULL
);
CREATE TABLE ends (
    place INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    reason TEXT,
    ended INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    progress TEXT NOT NULL,
    result BLOB NOT NULL
);
CREATE INDEX ends_by_expiry ON ends (expires);
INSERT INTO live SELECT place, state, progress FROM jobs WHERE ended IS NULL;
INSERT INTO ends SELECT place, state, reason, ended, expires, progress, ifnull(result, x'')
    FROM jobs WHERE ended IS NOT NULL;
DROP INDEX jobs_live;
DROP INDEX jobs_by_expiry;
ALTER TABLE jobs DROP COLUMN state;
ALTER TABLE jobs DROP COLUMN progress;
ALTER TABLE jobs DROP COLUMN reason;
ALTER TABLE jobs DROP COLUMN ended;
ALTER TABLE jobs DROP COLUMN expires;
ALTER TABLE jobs DROP COLUMN result;
ALTER TABLE keys ADD COLUMN removed TEXT;
CREATE INDEX keys_by_job ON keys (job);
";

/// The repeat of an end is known after a start too: only the worker that wrote the end may repeat it.
const FOURTH: &str = "
ALTER TABLE ends ADD COLUMN by_worker INTEGER NOT NULL DEFAULT 0;
";
