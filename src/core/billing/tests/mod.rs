//! The bill, from the reports to the charge and the quota.

mod bill;
mod estimates;
mod quotas;
