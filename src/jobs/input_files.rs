//! Inputs that are too large for the store: each is a file of the job's account, which its stored request names.
//!
//! Not the large values in an input, which have files of their own (`file_values`). The file is kept before the job is
//! stored and removed after its record; one that a kill has left between the two is gone at its own end.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use serde_json::value::RawValue;

use super::file_values::{JobFiles, rejected};
use super::request::{InputFile, StoredRequest};
use super::service::Jobs;
use super::store::StoredJob;
use crate::files::{FileId, FileOrigin};
use crate::telemetry::duty_metrics::JobDuty;

/// Longest input of a file that an object shows: as long as a page of a list may be.
pub const INPUT_SHOWN_BYTES_MAX: u64 = 16 << 20;
/// Refusal of an input whose file cannot be had any more.
const INPUT_GONE: &str = "is in a file that is not there: it was deleted, or its time is over";
/// Content type of such a file.
const CONTENT_TYPE: &str = "application/json";

impl JobFiles<'_> {
    /// Puts the input of a request into a file, which `kept` names, where the document would be longer than
    /// `document_bytes_max`.
    ///
    /// # Errors
    /// 413 or 422: the file cannot be kept.
    pub async fn store_input(
        self,
        request: &mut StoredRequest,
        document_bytes_max: usize,
        expires_secs: u64,
        kept: &mut Vec<FileId>,
    ) -> Result<(), Refusal> {
        // What a document has besides its input is a small part of it: the exact length would cost a copy.
        if request.input.get().len() <= document_bytes_max / 2
            || request.to_payload().len() <= document_bytes_max
        {
            return Ok(());
        }
        let input = std::mem::replace(&mut request.input, RawValue::NULL.to_owned());
        let input: Box<str> = input.into();
        let bytes = Bytes::from(input.into_string());
        let file = self.keep((CONTENT_TYPE, &bytes), FileOrigin::Input, expires_secs);
        let record = file.await?;
        kept.push(record.id);
        request.input_file = Some(InputFile {
            id: record.id,
            bytes: record.size,
        });
        Ok(())
    }

    /// Puts an input that is in a file back into its request.
    ///
    /// # Errors
    /// The file is gone or longer than `bytes_max`, or the store of files cannot be read.
    pub async fn restore_input(
        self,
        request: &mut StoredRequest,
        bytes_max: u64,
    ) -> Result<(), Refusal> {
        let Some(file) = request.input_file else {
            return Ok(());
        };
        let gone = || rejected("/input", INPUT_GONE);
        let record = self.files.find(self.account, file.id).await?;
        let record = record.ok_or_else(gone)?;
        if record.size > bytes_max {
            let max_mib = bytes_max >> 20;
            let text = format!("is longer than {max_mib} MiB, as a request may be here");
            return Err(rejected("/input", &text));
        }
        let read = self.files.read_whole(&record).await;
        let bytes = read.map_err(|error| {
            tracing::warn!(id = %file.id, %error, "the file of an input cannot be read");
            match error.kind() {
                io::ErrorKind::NotFound => gone(),
                _ => Refusal::JobsUnavailable,
            }
        })?;
        let input = serde_json::from_slice::<Box<RawValue>>(&bytes);
        request.input = input.map_err(|_| gone())?;
        request.input_file = None;
        Ok(())
    }

    /// Puts an input and its files in their places, as a run needs them. URLs of large files end at `until_ms`,
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// A file is gone or too large, or the store of files cannot be read.
    pub async fn restore(self, request: &mut StoredRequest, until_ms: u64) -> Result<(), Refusal> {
        self.restore_input(request, self.rules.bytes_max).await?;
        if let Some(input) = self.restore_values(&request.input, until_ms).await? {
            request.input = input;
        }
        Ok(())
    }
}

impl Jobs {
    /// Returns a job with its input, where that is in a file of up to [`INPUT_SHOWN_BYTES_MAX`] that can be read. Any
    /// other one is returned as it is.
    pub async fn with_input(&self, job: StoredJob) -> StoredJob {
        let payload = self.payload_with_input(&job).await;
        match payload {
            Some(payload) => StoredJob { payload, ..job },
            None => job,
        }
    }

    async fn payload_with_input(&self, job: &StoredJob) -> Option<Bytes> {
        InputFile::id_of(&job.payload)?;
        let mut request = StoredRequest::read(&job.payload).ok()?;
        self.restore_shown(job, &mut request, INPUT_SHOWN_BYTES_MAX)
            .await
            .ok()?;
        Some(request.to_payload().into())
    }

    /// Puts the input of a job back into its request.
    ///
    /// # Errors
    /// As in [`JobFiles::restore_input`].
    pub(super) async fn restore_shown(
        &self,
        job: &StoredJob,
        request: &mut StoredRequest,
        bytes_max: u64,
    ) -> Result<(), Refusal> {
        let own = JobFiles {
            files: &self.files,
            account: &job.definition.account,
            callbacks: None,
            rules: &Default::default(),
            base_url: "",
        };
        own.restore_input(request, bytes_max).await
    }

    /// Removes files of inputs whose records are gone, until its future is dropped.
    pub async fn remove_input_files(self: Arc<Self>) {
        let (signals, duties) = (self.signals(), &self.shared.metrics.jobs().duties);
        loop {
            let freed = signals.freed.notified();
            while let Some(id) = signals.next_freed_file() {
                match self.files.remove(id).await {
                    Ok(()) => duties.record_run(JobDuty::InputFiles, 1, self.now().0),
                    Err(error) => {
                        tracing::warn!(%id, %error, "the file of an input is left until its end");
                    }
                }
            }
            freed.await;
        }
    }
}
