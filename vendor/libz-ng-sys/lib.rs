//! zlib's interface for `flate2`, from zlib-rs instead of the C library zlib-ng.
//!
//! pingora-core switches on flate2's `zlib-ng`, whose C sources need cmake at build time. We do
//! not compress on the hot path; a build that needs only rustup and a linker is worth more. See
//! `docs/decisions/002-zlib-in-rust.md`.
//!
//! The one difference in shape: zlib-ng's `z_stream` holds its two allocator functions plain,
//! zlib-rs holds them as `Option`. A function pointer and an `Option` of it have one layout (the
//! null pointer optimisation of the Rust reference), so a pointer to one is a pointer to the other.
#![allow(non_camel_case_types, non_snake_case, unsafe_op_in_unsafe_fn, clippy::missing_safety_doc)]

use core::ffi::{c_char, c_int, c_uint, c_void};

pub use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FINISH, Z_FULL_FLUSH,
    Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK, Z_PARTIAL_FLUSH, Z_STREAM_END, Z_STREAM_ERROR,
    Z_SYNC_FLUSH, internal_state, zlibVersion,
};

pub type z_size = usize;
pub type uInt = c_uint;
type alloc_func = unsafe extern "C" fn(*mut c_void, c_uint, c_uint) -> *mut c_void;
type free_func = unsafe extern "C" fn(*mut c_void, *mut c_void);

#[repr(C)]
pub struct z_stream {
    pub next_in: *mut u8,
    pub avail_in: c_uint,
    pub total_in: z_size,
    pub next_out: *mut u8,
    pub avail_out: c_uint,
    pub total_out: z_size,
    pub msg: *mut c_char,
    pub state: *mut internal_state,
    pub zalloc: alloc_func,
    pub zfree: free_func,
    pub opaque: *mut c_void,
    pub data_type: c_int,
    pub adler: z_size,
    pub reserved: z_size,
}

const _: () = assert!(size_of::<z_stream>() == size_of::<libz_rs_sys::z_stream>());

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(pub unsafe fn $name(strm: *mut z_stream, $($arg: $ty),*) -> c_int {
            libz_rs_sys::$name(strm.cast(), $($arg),*)
        })*
    };
}

forward! {
    deflate(flush: c_int);
    deflateEnd();
    deflateReset();
    deflateParams(level: c_int, strategy: c_int);
    deflateSetDictionary(dictionary: *const u8, length: c_uint);
    inflate(flush: c_int);
    inflateEnd();
    inflateReset2(window_bits: c_int);
    inflateSetDictionary(dictionary: *const u8, length: c_uint);
    inflateInit2_(window_bits: c_int, version: *const c_char, size: c_int);
    deflateInit2_(level: c_int, method: c_int, window_bits: c_int, memory: c_int, strategy: c_int, version: *const c_char, size: c_int);
}
