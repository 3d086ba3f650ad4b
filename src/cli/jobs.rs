//! `infergate jobs`: durable jobs of a gateway that runs, listed and changed over its admin listener.
//!
//! Decides nothing: each command is one request, and tables are made in `job_tables`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::admin::{self, AdminArgs, AdminTarget, FetchedResponse};
use super::job_tables;
use super::output::{print, problem};

const REFUSED: u8 = 1;
const FAILED: u8 = 2;
/// The one state whose jobs are purged.
const QUEUED: &str = "queued";

/// Help below the options of every command about jobs.
pub const HELP: &str = "\
Exit codes: 0 shown or done, 1 no such job or queue or the job is not in a state for it, 2 the gateway or its
store does not answer.
Examples:
  infergate jobs list --state failed                  the newest failed jobs
  infergate jobs list --model acme/m --json           as JSON, with `next` for --cursor
  infergate jobs show k3v5w2qh7u4zcdemxnpo6rtbia      one job: times, attempts, result
  infergate jobs cancel k3v5w2qh7u4zcdemxnpo6rtbia    a queued one ends at once, a running one is asked to end
  infergate jobs requeue k3v5w2qh7u4zcdemxnpo6rtbia   submit the request of an ended one again
  infergate jobs queues                               how much waits, how old, how many permits
  infergate jobs pause acme/m                         take no job of a queue: it fills
  infergate jobs resume acme/m                        take its jobs again
  infergate jobs purge acme/m --state queued          cancel what is queued
  infergate jobs workers                              which processes run jobs, and how many
  infergate jobs stores                               what is kept, how large it is, whether jobs are accepted
  infergate jobs webhooks --dead                      notifications that were given up, and why
  infergate jobs webhooks retry ID                    deliver one of them again";

/// Arguments of `infergate jobs`.
#[derive(Args)]
pub struct JobsArgs {
    #[command(subcommand)]
    what: JobsCommand,
    #[command(flatten)]
    admin: AdminArgs,
    /// The configuration file whose `listen.admin` is asked.
    #[arg(long, short, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print what the gateway answers, as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum JobsCommand {
    /// List jobs, newest first, 100 at once.
    List {
        /// State: queued, running, succeeded, failed, canceled or aborted.
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Model, by its id.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// Account.
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// Go on where another list has ended.
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// Show one job: times, attempts, result, charge.
    Show {
        /// The job's id, 26 characters.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// End a job: a queued one at once, a running one is asked to end.
    Cancel {
        /// The job's id, 26 characters.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Submit the request of an ended job again, as a new job of the same account.
    Requeue {
        /// The job's id, 26 characters.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Show the queues: what waits and runs, how old, how much work, how many permits.
    Queues,
    /// Show the processes that run jobs.
    Workers,
    /// Show the store: problem, live jobs, bytes, free disk.
    Stores,
    /// Take no job of a queue until it is resumed; jobs are still accepted.
    Pause {
        /// The queue's key or its model's id, as `queues` shows them.
        #[arg(value_name = "DEP")]
        queue: String,
    },
    /// Take jobs of a paused queue again.
    Resume {
        /// The queue's key or its model's id, as `queues` shows them.
        #[arg(value_name = "DEP")]
        queue: String,
    },
    /// Show webhooks that wait or were given up, or deliver one of those again.
    #[command(args_conflicts_with_subcommands = true)]
    Webhooks {
        /// Show those that were given up.
        #[arg(long)]
        dead: bool,
        #[command(subcommand)]
        what: Option<WebhooksCommand>,
    },
    /// Cancel every queued job of a queue; running ones go on.
    Purge {
        /// State of the jobs: queued. Running ones are canceled one by one.
        #[arg(long, value_name = "STATE", default_value = QUEUED, value_parser = [QUEUED])]
        state: String,
        /// The queue's key or its model's id, as `queues` shows them.
        #[arg(value_name = "DEP")]
        queue: String,
    },
}

#[derive(Subcommand)]
enum WebhooksCommand {
    /// Deliver one again that was given up.
    Retry {
        /// The webhook's id, as `--dead` shows it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Request of a command, and what makes a text of its answer.
struct JobQuestion {
    is_post: bool,
    path: String,
    table: fn(&Value) -> String,
}

/// Runs a command about jobs.
pub fn run(args: &JobsArgs) -> ExitCode {
    let target = args.admin.target_of(args.config.as_deref());
    let question = question(&args.what);
    let asked = target.and_then(|target| ask(&target, &question));
    match asked {
        Ok(FetchedResponse { status: 200, body }) => print(&match args.json {
            true => format!("{body:#}\n"),
            false => (question.table)(&body),
        }),
        Ok(FetchedResponse { status, body }) => {
            let unknown = || format!("the gateway answered with status {status}");
            let why = body["error"].as_str().map_or_else(unknown, str::to_owned);
            problem(&format!("error: {why}"));
            ExitCode::from(if status < 500 { REFUSED } else { FAILED })
        }
        Err(why) => {
            problem(&format!("error: {why}"));
            ExitCode::from(FAILED)
        }
    }
}

fn ask(target: &AdminTarget, question: &JobQuestion) -> Result<FetchedResponse, String> {
    match question.is_post {
        true => admin::post(target, &question.path),
        false => admin::get(target, &question.path),
    }
}

fn question(what: &JobsCommand) -> JobQuestion {
    let get = |path: String, table| JobQuestion {
        is_post: false,
        path,
        table,
    };
    let post = |path: String, table| JobQuestion {
        is_post: true,
        path,
        table,
    };
    let job = |id: &str, verb: &str| format!("/jobs/{}{verb}", encoded(id));
    let queue = |name: &str, verb: &str| format!("/jobs/queues/{}/{verb}", encoded(name));
    match what {
        JobsCommand::List {
            state,
            model,
            account,
            cursor,
        } => {
            let members = [
                ("state", state),
                ("model", model),
                ("account", account),
                ("cursor", cursor),
            ];
            let given = members.into_iter().filter_map(|(name, value)| {
                let value = encoded(value.as_deref()?);
                Some(format!("{name}={value}"))
            });
            let query = given.collect::<Vec<_>>().join("&");
            get(format!("/jobs?{query}"), job_tables::list)
        }
        JobsCommand::Show { id } => get(job(id, ""), job_tables::record),
        JobsCommand::Cancel { id } => post(job(id, "/cancel"), job_tables::canceled),
        JobsCommand::Requeue { id } => post(job(id, "/requeue"), job_tables::requeued),
        JobsCommand::Queues => get("/jobs/queues".to_owned(), job_tables::queues),
        JobsCommand::Workers => get("/jobs/workers".to_owned(), job_tables::workers),
        JobsCommand::Stores => get("/jobs/stores".to_owned(), job_tables::stores),
        JobsCommand::Pause { queue: name } => post(queue(name, "pause"), job_tables::paused),
        JobsCommand::Resume { queue: name } => post(queue(name, "resume"), job_tables::paused),
        JobsCommand::Webhooks {
            what: Some(WebhooksCommand::Retry { id }),
            ..
        } => {
            let path = format!("/jobs/webhooks/{}/retry", encoded(id));
            post(path, job_tables::retried)
        }
        JobsCommand::Webhooks { dead, what: None } => {
            let query = if *dead { "?dead" } else { "" };
            get(format!("/jobs/webhooks{query}"), job_tables::webhooks)
        }
        JobsCommand::Purge { queue: name, .. } => post(queue(name, "purge"), job_tables::purged),
    }
}

/// Text as one segment of a path or one value of a query.
fn encoded(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'@' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_request() {
        let id = || "a".repeat(26);
        let listed = JobsCommand::List {
            state: Some("failed".to_owned()),
            model: Some("acme/m x".to_owned()),
            account: None,
            cursor: None,
        };
        for (what, is_post, path) in [
            (listed, false, "/jobs?state=failed&model=acme%2Fm%20x"),
            (
                JobsCommand::Show {
                    id: "../state".to_owned(),
                },
                false,
                "/jobs/..%2Fstate",
            ),
            (
                JobsCommand::Cancel { id: id() },
                true,
                "/jobs/aaaaaaaaaaaaaaaaaaaaaaaaaa/cancel",
            ),
            (
                JobsCommand::Purge {
                    state: QUEUED.to_owned(),
                    queue: "acme/m".to_owned(),
                },
                true,
                "/jobs/queues/acme%2Fm/purge",
            ),
            (JobsCommand::Queues, false, "/jobs/queues"),
            (
                JobsCommand::Webhooks {
                    dead: true,
                    what: None,
                },
                false,
                "/jobs/webhooks?dead",
            ),
            (
                JobsCommand::Webhooks {
                    dead: false,
                    what: Some(WebhooksCommand::Retry {
                        id: "a-completed".to_owned(),
                    }),
                },
                true,
                "/jobs/webhooks/a-completed/retry",
            ),
        ] {
            let question = question(&what);
            assert_eq!((question.is_post, &*question.path), (is_post, path));
        }
    }
}
