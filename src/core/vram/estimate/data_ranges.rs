//! Byte ranges of the tensors of one file: counted, without overlap, within the file.
//!
//! Not what is in them. Memory: 16 bytes a tensor, [`TENSORS_MAX`] of them.

use super::header_error::HeaderError;

/// Tensors of one file: twenty times as many as the largest models have.
pub(super) const TENSORS_MAX: u64 = 65_536;

/// Ranges of the tensors of a file, from the beginning of the data.
#[derive(Debug, Default)]
pub(super) struct DataRanges {
    ranges: Vec<(u64, u64)>,
}

impl DataRanges {
    /// Adds the range from `begin` to `end`, which is excluded.
    pub(super) fn add(&mut self, begin: u64, end: u64) -> Result<(), HeaderError> {
        if end < begin {
            return Err(HeaderError::ReversedTensor);
        }
        if self.ranges.len() as u64 >= TENSORS_MAX {
            return Err(too_many_tensors(TENSORS_MAX + 1));
        }
        self.ranges.push((begin, end));
        Ok(())
    }

    /// Returns the sum of the bytes, once no two ranges overlap and all are within a file of `file_bytes` whose data
    /// begin at `data_begin`.
    pub(super) fn sum(mut self, data_begin: u64, file_bytes: u64) -> Result<u64, HeaderError> {
        self.ranges.retain(|(begin, end)| begin < end);
        self.ranges.sort_unstable();
        let (mut last_end, mut sum) = (0, 0);
        for (begin, end) in self.ranges {
            if begin < last_end {
                return Err(HeaderError::OverlappingTensors);
            }
            last_end = end;
            sum += end - begin;
        }
        let needed = data_begin.saturating_add(last_end);
        match last_end > 0 && needed > file_bytes {
            true => Err(HeaderError::TensorsCut {
                needed,
                present: file_bytes,
            }),
            false => Ok(sum),
        }
    }
}

/// Returns the fault of a file with too many tensors.
pub(super) fn too_many_tensors(count: u64) -> HeaderError {
    HeaderError::TooMany {
        what: "tensors",
        count,
        max: TENSORS_MAX,
    }
}
