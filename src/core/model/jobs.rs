//! Durable jobs of a model: deadlines, attempts, fairness and its share of the permits.
//!
//! Neither a store nor a worker: the fields are the keys under `models[].jobs`. Times are seconds, bounds are in
//! the names.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use crate::Millis;

/// Flows of a deployable: the units among which its jobs are shared fairly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "FlowsText")]
pub enum FlowMode {
    /// One flow per account.
    #[default]
    Account,
    /// One flow per model, for models that share a base.
    Model,
    /// Shuffle sharding: `shards` flows, and each account uses the shorter of its `hand` of them.
    Shards {
        /// Flows in all, 1 to 1,024.
        shards: u16,
        /// Flows of one account, 1 to `shards`.
        hand: u16,
    },
}

/// Flows as the configuration has them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum FlowsText {
    /// One flow per account, or one per model.
    Word(FlowWord),
    /// Shuffle sharding.
    Shards(ShardsText),
}

/// Flows that need no numbers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum FlowWord {
    Account,
    Model,
}

/// Numbers of shuffle sharding.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShardsText {
    /// Flows in all.
    #[schemars(range(min = 1, max = 1024))]
    shards: u16,
    /// Flows of one account.
    #[serde(default = "ShardsText::default_hand")]
    #[schemars(range(min = 1, max = 16))]
    hand: u16,
}

impl ShardsText {
    fn default_hand() -> u16 {
        2
    }
}

impl Serialize for FlowMode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = match *self {
            FlowMode::Account => FlowsText::Word(FlowWord::Account),
            FlowMode::Model => FlowsText::Word(FlowWord::Model),
            FlowMode::Shards { shards, hand } => FlowsText::Shards(ShardsText { shards, hand }),
        };
        text.serialize(to)
    }
}

impl<'de> Deserialize<'de> for FlowMode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match FlowsText::deserialize(from)? {
            FlowsText::Word(FlowWord::Account) => Ok(FlowMode::Account),
            FlowsText::Word(FlowWord::Model) => Ok(FlowMode::Model),
            FlowsText::Shards(ShardsText { shards, hand }) => {
                if shards == 0 || hand == 0 || hand > shards {
                    return Err(de::Error::custom("`hand` is 1 to `shards`"));
                }
                Ok(FlowMode::Shards { shards, hand })
            }
        }
    }
}

/// Measure by which flows get equal shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FairBy {
    /// Time for which their jobs hold permits.
    #[default]
    Time,
    /// Number of their jobs.
    Jobs,
}

/// Treatment of jobs whose account has used up the day's neurons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenQuotaUsed {
    /// Submits are refused, and queued jobs fail when their turn comes.
    #[default]
    Fail,
    /// Jobs wait for 00:00 UTC.
    Wait,
}

/// Treatment of jobs whose input could not be moderated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModerationFailure {
    /// The job fails.
    #[default]
    Fail,
    /// The job runs.
    Allow,
}

/// Moderation of inputs by a service of the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModerationSpec {
    /// URL that gets `{"id", "account", "model", "input"}` by POST before the job runs, and answers 2xx with
    /// `{"flagged": true}` or `{"flagged": false}`.
    pub url: Arc<str>,
    /// Longest duration of the call, milliseconds.
    #[serde(default = "ModerationSpec::default_timeout_ms")]
    #[schemars(range(min = 1, max = 30_000))]
    pub timeout_ms: u64,
    /// Treatment of jobs when the service fails, is late, or answers something else.
    #[serde(default)]
    pub on_failure: ModerationFailure,
}

impl ModerationSpec {
    fn default_timeout_ms() -> u64 {
        2000
    }
}

/// Limits of an account's jobs. Each one that is there replaces the model's and the deployment's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccountJobLimits {
    /// Replaces `models[].jobs.predict_timeout_secs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -2_592_000, max = 2_592_000))]
    pub predict_timeout_secs: Option<i64>,
    /// Replaces `models[].jobs.train_timeout_secs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -2_592_000, max = 2_592_000))]
    pub train_timeout_secs: Option<i64>,
    /// Replaces `max_run_lifetime_secs` of models and deployments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub max_run_lifetime_secs: Option<u64>,
}

/// Durable jobs of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobSpec {
    /// Jobs of the model are accepted, where the configuration has `jobs`.
    pub enabled: bool,
    /// Seconds from the first start of a prediction to its end; 0 and less mean 1,800.
    #[schemars(range(min = -2_592_000, max = 2_592_000))]
    pub predict_timeout_secs: i64,
    /// Seconds from the first start of a training to its end; at least those of a prediction.
    #[schemars(range(min = -2_592_000, max = 2_592_000))]
    pub train_timeout_secs: i64,
    /// Seconds from the submit of a job to its end.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub max_run_lifetime_secs: u64,
    /// Starts of a prediction that may end with the loss of its server or worker. A training has one.
    #[schemars(range(min = 1, max = 1000))]
    pub attempts_max: u32,
    /// Flows that share the model's permits fairly: `account`, `model`, or `{ shards, hand }`.
    pub flows: FlowMode,
    /// Measure of fairness among flows.
    pub fair_by: FairBy,
    /// Queued jobs in all; a submit beyond is refused.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub queue_max: u32,
    /// Queued jobs of one account.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub queue_max_per_account: u32,
    /// Share of the permits' time that jobs get while live requests wait too, percent.
    #[schemars(range(min = 1, max = 99))]
    pub share_percent: u32,
    /// Permits that jobs may hold at once, percent of all; at least one permit.
    #[schemars(range(min = 1, max = 100))]
    pub permits_max_percent: u32,
    /// Permits that jobs never take.
    #[schemars(range(max = 65_536))]
    pub keep_free: u32,
    /// Seconds that a canceled job has to end by itself.
    #[schemars(range(min = 1, max = 3600))]
    pub cancel_grace_secs: u64,
    /// Output of a job, MiB; one with more fails.
    #[schemars(range(min = 1, max = 1024))]
    pub output_max_mib: u64,
    /// Jobs of an account whose neurons of the day are used up.
    pub when_quota_used: WhenQuotaUsed,
    /// Moderation of inputs before they run; none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moderation: Option<ModerationSpec>,
}

impl JobSpec {
    /// Timeout of a prediction where the configuration names none that counts, seconds.
    pub const PREDICT_TIMEOUT_SECS: i64 = 1800;

    /// Time from the first start of a prediction to its end.
    pub fn predict_timeout(&self) -> Millis {
        let secs = match self.predict_timeout_secs {
            ..=0 => Self::PREDICT_TIMEOUT_SECS,
            secs => secs,
        };
        Millis::from_secs(secs.unsigned_abs())
    }

    /// Time from the first start of a training to its end.
    pub fn train_timeout(&self) -> Millis {
        let secs = self.train_timeout_secs.max(0).unsigned_abs();
        Millis::from_secs(secs).max(self.predict_timeout())
    }

    /// Rules for a job of an account, by way of a deployment with this lifetime: the account's limits win over the
    /// deployment's, and those over the model's.
    #[must_use]
    pub fn with_limits(&self, account: &AccountJobLimits, deployment_secs: Option<u64>) -> JobSpec {
        let mut rules = self.clone();
        if let Some(secs) = account.max_run_lifetime_secs.or(deployment_secs) {
            rules.max_run_lifetime_secs = secs;
        }
        if let Some(secs) = account.predict_timeout_secs {
            rules.predict_timeout_secs = secs;
        }
        if let Some(secs) = account.train_timeout_secs {
            rules.train_timeout_secs = secs;
        }
        rules
    }

    /// Permits that jobs may hold at once, of `limit`.
    pub fn permits_max(&self, limit: u32) -> u32 {
        let part = u64::from(limit) * u64::from(self.permits_max_percent) / 100;
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        part.max(1).min(limit.saturating_sub(self.keep_free))
    }
}

impl Default for JobSpec {
    fn default() -> Self {
        JobSpec {
            enabled: true,
            predict_timeout_secs: Self::PREDICT_TIMEOUT_SECS,
            train_timeout_secs: 86_400,
            max_run_lifetime_secs: 86_400,
            attempts_max: 3,
            flows: FlowMode::Account,
            fair_by: FairBy::Time,
            queue_max: 100_000,
            queue_max_per_account: 10_000,
            share_percent: 25,
            permits_max_percent: 100,
            keep_free: 0,
            cancel_grace_secs: 10,
            output_max_mib: 64,
            when_quota_used: WhenQuotaUsed::Fail,
            moderation: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_that_are_not_positive_are_the_usual_and_a_training_has_no_less_than_a_prediction() {
        let spec = |predict_timeout_secs, train_timeout_secs| JobSpec {
            predict_timeout_secs,
            train_timeout_secs,
            ..JobSpec::default()
        };
        assert_eq!(spec(0, 10).predict_timeout(), Millis::from_secs(1800));
        assert_eq!(spec(-5, 10).train_timeout(), Millis::from_secs(1800));
        assert_eq!(spec(7, 10).train_timeout(), Millis::from_secs(10));
    }

    #[test]
    fn the_limits_of_the_account_win_over_the_deployments_and_those_over_the_models() {
        let model = JobSpec::default();
        let lifetime = |account: Option<u64>, deployment| {
            let account = AccountJobLimits {
                max_run_lifetime_secs: account,
                ..AccountJobLimits::default()
            };
            model
                .with_limits(&account, deployment)
                .max_run_lifetime_secs
        };
        assert_eq!(lifetime(None, None), 86_400);
        assert_eq!(lifetime(None, Some(20)), 20);
        assert_eq!(lifetime(Some(30), Some(20)), 30);
        let account = AccountJobLimits {
            predict_timeout_secs: Some(90_000),
            train_timeout_secs: Some(0),
            ..AccountJobLimits::default()
        };
        let rules = model.with_limits(&account, None);
        assert_eq!(rules.predict_timeout(), Millis::from_secs(90_000));
        assert_eq!(rules.train_timeout(), Millis::from_secs(90_000));
    }

    #[test]
    fn jobs_may_hold_a_permit_unless_all_are_kept_free() {
        let spec = |permits_max_percent, keep_free| JobSpec {
            permits_max_percent,
            keep_free,
            ..JobSpec::default()
        };
        assert_eq!(spec(50, 0).permits_max(8), 4);
        assert_eq!(spec(1, 0).permits_max(8), 1);
        assert_eq!(spec(100, 2).permits_max(8), 6);
        assert_eq!(spec(100, 2).permits_max(1), 0);
    }

    #[test]
    fn flows_are_a_word_or_two_numbers() {
        let read = |text| serde_json::from_str::<FlowMode>(text);
        assert_eq!(read("\"model\"").unwrap(), FlowMode::Model);
        let shards = read(r#"{"shards":8}"#).unwrap();
        assert_eq!(shards, FlowMode::Shards { shards: 8, hand: 2 });
        assert_eq!(
            serde_json::to_string(&shards).unwrap(),
            r#"{"shards":8,"hand":2}"#
        );
        assert!(read(r#"{"shards":2,"hand":3}"#).is_err());
    }
}
