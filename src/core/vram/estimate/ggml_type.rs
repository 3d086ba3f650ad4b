//! Sizes of tensors in the types of ggml.
//!
//! Not the layout of a block: only its elements and its bytes
//! (<https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py>, `GGML_QUANT_SIZES`).

/// Type id, elements of a block, bytes of a block.
const TYPES: &[(u32, u64, u64)] = &[
    (0, 1, 4),      // F32
    (1, 1, 2),      // F16
    (2, 32, 18),    // Q4_0
    (3, 32, 20),    // Q4_1
    (6, 32, 22),    // Q5_0
    (7, 32, 24),    // Q5_1
    (8, 32, 34),    // Q8_0
    (9, 32, 40),    // Q8_1
    (10, 256, 84),  // Q2_K
    (11, 256, 110), // Q3_K
    (12, 256, 144), // Q4_K
    (13, 256, 176), // Q5_K
    (14, 256, 210), // Q6_K
    (15, 256, 292), // Q8_K
    (16, 256, 66),  // IQ2_XXS
    (17, 256, 74),  // IQ2_XS
    (18, 256, 98),  // IQ3_XXS
    (19, 256, 50),  // IQ1_S
    (20, 32, 18),   // IQ4_NL
    (21, 256, 110), // IQ3_S
    (22, 256, 82),  // IQ2_S
    (23, 256, 136), // IQ4_XS
    (24, 1, 1),     // I8
    (25, 1, 2),     // I16
    (26, 1, 4),     // I32
    (27, 1, 8),     // I64
    (28, 1, 8),     // F64
    (29, 256, 56),  // IQ1_M
    (30, 1, 2),     // BF16
    (34, 256, 54),  // TQ1_0
    (35, 256, 66),  // TQ2_0
    (39, 32, 17),   // MXFP4
    (40, 64, 36),   // NVFP4
    (41, 128, 18),  // Q1_0
];

/// Elements and bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSize {
    elements: u64,
    bytes: u64,
}

impl BlockSize {
    /// Returns the size of a type's blocks; none for an unknown type.
    pub(super) fn of_type(id: u32) -> Option<Self> {
        let row = TYPES.iter().find(|(known, _, _)| *known == id)?;
        Some(BlockSize {
            elements: row.1,
            bytes: row.2,
        })
    }

    /// Returns the bytes of a tensor; none where rows have no whole number of blocks, or the size has no number.
    pub(super) fn tensor_bytes(self, dimensions: &[u64]) -> Option<u64> {
        let row = dimensions.first().copied().unwrap_or(1);
        if !row.is_multiple_of(self.elements) {
            return None;
        }
        let mut rows = dimensions.iter().skip(1).copied();
        let rows = rows.try_fold(1_u64, u64::checked_mul);
        (row / self.elements)
            .checked_mul(self.bytes)?
            .checked_mul(rows?)
    }
}
