//! Check of a write-ahead log before SQLite recovers from it: SQLite drops a bad end silently.
//!
//! Reads only. The format is that of <https://www.sqlite.org/fileformat2.html#walformat>: a header, then frames whose
//! checksums go on from one another. Frames of an earlier use of the file have other salts and are no damage.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// Bytes of the header.
const HEADER: usize = 32;
/// Bytes before the page of a frame.
const FRAME_HEADER: usize = 24;
/// First four bytes, without the last bit, which tells the order of bytes in checksums.
const MAGIC: u32 = 0x377f_0682;
/// The one version of the format.
const VERSION: u32 = 3_007_000;
/// Sizes of a page.
const PAGE_MIN: u32 = 512;
const PAGE_MAX: u32 = 65536;

/// Bad end of a write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WalDamage {
    /// Place of the first bad byte range in the file.
    pub offset: u64,
    /// Frames of the present use from there on. Their transactions are not read.
    pub frames: u64,
    /// Fault that was found there.
    pub problem: &'static str,
}

/// Salts of a header or a frame.
type Salts = [u8; 8];

struct WalHeader {
    page: usize,
    is_big_endian: bool,
    salts: Salts,
    sums: [u32; 2],
}

/// Looks for damage in the write-ahead log `path`. Returns none of a whole one, and where there is none.
///
/// # Errors
/// The file cannot be read.
pub(super) fn find_damage(path: &Path) -> io::Result<Option<WalDamage>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut bytes = [0; HEADER];
    let read = read_up_to(&mut reader, &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    match WalHeader::read(&bytes[..read]) {
        Ok(header) => check_frames(&mut reader, header),
        Err(problem) => Ok(Some(WalDamage {
            offset: 0,
            frames: 0,
            problem,
        })),
    }
}

impl WalHeader {
    fn read(bytes: &[u8]) -> Result<WalHeader, &'static str> {
        if bytes.len() < HEADER {
            return Err("the header is cut off");
        }
        let magic = number(&bytes[..4]);
        if magic & !1 != MAGIC {
            return Err("the header does not begin as one");
        }
        let is_big_endian = magic & 1 == 1;
        let sums = checksum(is_big_endian, [0; 2], &bytes[..24]);
        if sums != [number(&bytes[24..]), number(&bytes[28..])] {
            return Err("the checksum of the header is wrong");
        }
        let page = number(&bytes[8..]);
        if number(&bytes[4..]) != VERSION
            || !(PAGE_MIN..=PAGE_MAX).contains(&page)
            || !page.is_power_of_two()
        {
            return Err("the header has an unknown version or size of pages");
        }
        Ok(WalHeader {
            page: page as usize,
            is_big_endian,
            salts: salts(&bytes[16..]),
            sums,
        })
    }
}

/// Follows the checksums from frame to frame, then counts the frames of the present use behind the first bad one.
fn check_frames(reader: &mut impl Read, header: WalHeader) -> io::Result<Option<WalDamage>> {
    let mut frame = vec![0; FRAME_HEADER + header.page];
    let mut offset = HEADER as u64;
    let mut sums = header.sums;
    let mut damage: Option<WalDamage> = None;
    loop {
        let read = read_up_to(reader, &mut frame)?;
        if read == 0 {
            break;
        }
        let is_present = read >= 16 && salts(&frame[8..]) == header.salts;
        let problem = match () {
            () if read < frame.len() => Some("a frame is cut off"),
            () if !is_present => Some("the salts of a frame are wrong"),
            () => {
                sums = checksum(header.is_big_endian, sums, &frame[..8]);
                sums = checksum(header.is_big_endian, sums, &frame[FRAME_HEADER..]);
                let is_good = sums == [number(&frame[16..]), number(&frame[20..])];
                (!is_good || number(&frame) == 0).then_some("the checksum of a frame is wrong")
            }
        };
        match (&mut damage, problem) {
            // The checksums behind the first bad frame lead nowhere: salts tell whose a frame is.
            (Some(found), _) => found.frames += u64::from(is_present),
            (None, Some(problem)) => {
                // Too short for salts: cut off inside a frame that followed a good one.
                let frames = u64::from(is_present || read < 16);
                damage = Some(WalDamage {
                    offset,
                    frames,
                    problem,
                });
            }
            (None, None) => {}
        }
        offset += read as u64;
    }
    Ok(damage.filter(|damage| damage.frames > 0))
}

fn read_up_to(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match reader.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Returns the number in the first four bytes.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn salts(bytes: &[u8]) -> Salts {
    let mut salts = Salts::default();
    salts.copy_from_slice(&bytes[..8]);
    salts
}

fn checksum(is_big_endian: bool, [mut first, mut second]: [u32; 2], bytes: &[u8]) -> [u32; 2] {
    let word = |bytes: &[u8]| match is_big_endian {
        true => number(bytes),
        false => number(bytes).swap_bytes(),
    };
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(word(pair)).wrapping_add(second);
        second = second.wrapping_add(word(&pair[4..])).wrapping_add(first);
    }
    [first, second]
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;

    const FRAME: usize = FRAME_HEADER + 4096;

    /// A database in use: its log has committed transactions of one frame each and one of many.
    fn log() -> (TempDir, Connection, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("d");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode=wal; PRAGMA wal_autocheckpoint=0;
                 CREATE TABLE t (n INTEGER, b BLOB);
                 INSERT INTO t VALUES (1, 'x');
                 INSERT INTO t VALUES (2, zeroblob(40000));
                 INSERT INTO t VALUES (3, 'z');",
            )
            .unwrap();
        (folder, connection, path)
    }

    fn damage_of(bytes: &[u8]) -> Option<WalDamage> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("w");
        fs::write(&path, bytes).unwrap();
        find_damage(&path).unwrap()
    }

    /// Rows that SQLite finds with the log replaced by `bytes`.
    fn rows_with(database: &Path, bytes: &[u8]) -> i64 {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("d");
        fs::copy(database, &path).unwrap();
        fs::write(folder.path().join("d-wal"), bytes).unwrap();
        let connection = Connection::open(&path).unwrap();
        connection
            .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
            .unwrap_or(-1)
    }

    fn wal_of(path: &Path) -> Vec<u8> {
        fs::read(path.with_file_name("d-wal")).unwrap()
    }

    #[test]
    fn a_whole_log_an_empty_one_and_none_have_no_damage() {
        let (_folder, connection, path) = log();
        let whole = wal_of(&path);
        assert!(whole.len() > 13 * FRAME);
        assert_eq!(damage_of(&whole), None);
        assert_eq!(damage_of(&[]), None);
        assert_eq!(find_damage(&path.with_file_name("none")).unwrap(), None);
        // Frames of the former use stay behind those of the present one.
        connection
            .execute_batch("PRAGMA wal_checkpoint(RESTART); INSERT INTO t VALUES (4, 'a');")
            .unwrap();
        let reused = wal_of(&path);
        assert_eq!(reused.len(), whole.len());
        assert_eq!(damage_of(&reused), None);
        assert_eq!(
            damage_of(&reused[..reused.len() - 100]),
            None,
            "it is of the former use"
        );
    }

    #[test]
    fn a_changed_byte_is_found_wherever_sqlite_drops_what_follows() {
        let (_folder, _connection, path) = log();
        let whole = wal_of(&path);
        let all = rows_with(&path, &whole);
        assert_eq!(all, 3);
        let frames = (whole.len() - HEADER) / FRAME;
        // Page number, size at a commit, both salts, both sums, and bytes of the page.
        for place in [0, 4, 8, 12, 16, 20, FRAME_HEADER, FRAME_HEADER + 4095] {
            for frame in 0..frames {
                let at = HEADER + frame * FRAME + place;
                let mut bytes = whole.clone();
                bytes[at] ^= 0x40;
                let damage = damage_of(&bytes);
                let is_last = frame + 1 == frames;
                // The salts of the last frame tell that it is of a former use: nothing can be said then.
                if is_last && (8..16).contains(&place) {
                    assert_eq!(damage, None);
                    continue;
                }
                let damage = damage.expect("it is found");
                let begins = (HEADER + frame * FRAME) as u64;
                assert_eq!(damage.offset, begins, "frame {frame}, byte {place}");
                let of_salts = u64::from((8..16).contains(&place));
                assert_eq!(damage.frames, (frames - frame) as u64 - of_salts);
                assert!(rows_with(&path, &bytes) < all);
            }
        }
        for at in 0..HEADER {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let damage = damage_of(&bytes).expect("it is found");
            assert_eq!(damage.offset, 0, "byte {at}");
        }
    }

    #[test]
    fn a_log_that_is_cut_off_inside_a_frame_is_torn_there() {
        let (_folder, _connection, path) = log();
        let whole = wal_of(&path);
        let last = whole.len() - FRAME;
        for more in [1, 8, 15, 16, 24, 25, 4000, FRAME - 1] {
            let damage = damage_of(&whole[..last + more]).expect("it is found");
            assert_eq!(
                (damage.offset, damage.frames),
                (last as u64, 1),
                "{more} bytes"
            );
            assert_eq!(damage.problem, "a frame is cut off");
        }
        assert_eq!(
            damage_of(&whole[..last]),
            None,
            "a whole transaction is the last"
        );
        for cut in 1..HEADER {
            assert_eq!(damage_of(&whole[..cut]).unwrap().offset, 0);
        }
    }

    #[test]
    fn a_transaction_without_its_commit_is_no_damage() {
        let (_folder, _connection, path) = log();
        let whole = wal_of(&path);
        // The last one has one frame, the one before it many.
        let cut = whole.len() - 2 * FRAME;
        assert_eq!(damage_of(&whole[..cut]), None);
        assert!(rows_with(&path, &whole[..cut]) < 3);
    }
}
