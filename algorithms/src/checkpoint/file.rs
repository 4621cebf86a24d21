//! The checkpoint file of one rank: a record in the safetensors format, which other tools read, with a checksum of the
//! whole content.

use super::safetensors::{LONGEST_HEADER, TensorEntry, decode, encode};
use crate::host_copy;
use crate::record::Record;
use hexagram_logical::{Error, ReadView, Result};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Name of the fact that all files of one checkpoint share, and no others: its name, and a random number.
pub(super) const SAVED_AS: &str = "saved-as";

/// Names of the facts that belong to the format itself, and are hidden from records.
const FORMAT: &str = "format";
const VERSION: &str = "hexagram 2";
const CHECKSUM: &str = "checksum";

const REMEDY: &str = "free space there or use a different directory; the previous checkpoint is intact";

/// Writes a record, and returns its bytes when they are on disk.
pub(super) fn write(path: &Path, record: &Record) -> Result<Vec<u8>> {
    let bytes = to_bytes(&path.display(), record)?;
    put(path, &bytes)?;
    Ok(bytes)
}

/// Returns the bytes of a file with a record; errors call it `place`.
pub(super) fn to_bytes(place: &dyn fmt::Display, record: &Record) -> Result<Vec<u8>> {
    let mut facts = record.facts.clone();
    facts.insert(FORMAT.to_owned(), VERSION.to_owned());
    facts.insert(CHECKSUM.to_owned(), format!("{:016x}", record.checksum()?));
    let views = record.tensors.values().map(|saved| saved.values.read_all());
    let views: Vec<_> = views.collect::<Result<_>>()?;
    let bytes: Vec<_> = views.iter().map(ReadView::bytes_on_host).collect::<Result<_>>()?;
    let tensors = record.tensors.iter().zip(&bytes).map(|((name, saved), bytes)| TensorEntry {
        name: name.clone(),
        dtype: saved.values.dtype(),
        shape: saved.shape.clone(),
        bytes,
    });
    encode(&facts, tensors.collect()).map_err(|cause| unwritable(place, cause))
}

/// Writes the bytes of a file, and returns when they are on disk.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = create(path).and_then(|file| store(file, bytes));
    written.map_err(|cause| Error::system(format!("write {}", path.display()), cause, REMEDY))
}

/// Creates a file. A file or link of that name, left by a killed run or another user, is removed and never written
/// into; any other entry stays, and is an error.
fn create(path: &Path) -> io::Result<File> {
    let is_left_over = |about: fs::Metadata| about.is_file() || about.is_symlink();
    if fs::symlink_metadata(path).is_ok_and(is_left_over) {
        fs::remove_file(path)?;
    }
    File::create_new(path)
}

/// Writes all bytes, and returns when they are on disk.
fn store(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the name under which a file was saved, and reads only its header; `None` if it cannot be read.
pub(super) fn saved_as(path: &Path) -> Option<String> {
    fact(path, SAVED_AS)
}

/// Returns true if another version of this library has written the file. Reads only its header.
pub(super) fn is_of_another_version(path: &Path) -> bool {
    fact(path, FORMAT).is_some_and(|version| is_another_version(&version))
}

fn is_another_version(format: &str) -> bool {
    format != VERSION && format.starts_with("hexagram ")
}

/// Returns a fact in the header of a file.
fn fact(path: &Path, name: &str) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let mut len = [0; 8];
    file.read_exact(&mut len).ok()?;
    let mut header = Vec::new();
    file.take(u64::from_le_bytes(len).min(LONGEST_HEADER)).read_to_end(&mut header).ok()?;
    let header = String::from_utf8(header).ok()?;
    // These quotes cannot be part of a JSON name or value, where they would be escaped: this is the fact itself.
    let (_, fact) = header.split_once(&format!("\"{name}\":\""))?;
    Some(fact.split_once('"')?.0.to_owned())
}

/// Reads a file that [`write()`] has written.
pub(super) fn read(path: &Path) -> Result<Record> {
    from_bytes(&path.display(), &bytes(path)?)
}

/// Returns the record in the bytes of a file; errors call it `place`.
pub(super) fn from_bytes(place: &dyn fmt::Display, bytes: &[u8]) -> Result<Record> {
    let (facts, tensors) =
        decode(bytes).ok_or_else(|| damaged(place, "it is not a complete safetensors file"))?;
    let mut record = Record { facts, ..Record::default() };
    match record.facts.remove(FORMAT) {
        Some(version) if version == VERSION => {}
        Some(version) if is_another_version(&version) => return Err(of_another_version(place, &version)),
        _ => return Err(damaged(place, format!("it is not of the format `{VERSION}`"))),
    }
    let checksum = record.facts.remove(CHECKSUM).unwrap_or_default();
    for TensorEntry { name, dtype, shape, bytes } in tensors {
        record.put_tensor(&name, &shape, host_copy::from_bytes(dtype, bytes)?)?;
    }
    if format!("{:016x}", record.checksum()?) != checksum {
        return Err(damaged(place, "its checksum is wrong"));
    }
    Ok(record)
}

/// Returns the bytes of a file.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|cause| {
        Error::system(format!("read {}", path.display()), cause, "see whether it may be read")
    })
}

fn unwritable(place: &dyn fmt::Display, cause: impl fmt::Display) -> Error {
    let what = format!("{place} cannot be written: {cause}");
    Error::usage(what, "save less in it, under shorter names")
}

fn of_another_version(place: &dyn fmt::Display, version: &str) -> Error {
    let what = format!("{place} is of the format `{version}`, and this version reads `{VERSION}`");
    Error::usage(what, "load it with the version that saved it, or begin anew in another directory")
}

fn damaged(place: &dyn fmt::Display, cause: impl fmt::Display) -> Error {
    let what = format!("{place} is damaged: {cause}");
    Error::usage(
        what,
        "remove the directory that it is in, on all hosts, to continue from the previous checkpoint",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::testing::buffer;
    use hexagram_logical::{Buffer, DType};
    use std::os::unix::net::UnixListener;

    fn record() -> Record {
        let mut record = Record::default();
        record.put("numbers", &[1.5f32, -2.0, f32::NAN]).unwrap();
        record.put("bytes", b"abc").unwrap();
        record.put("nothing", &[0i64; 0]).unwrap();
        record.put_tensor("matrix", &[2, 1], buffer(&[3.0f64, 4.0])).unwrap();
        record.note("epoch", 7);
        record
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("hexagram-file-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_read() {
        let path = scratch("round");
        write(&path, &record()).unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found.checksum().unwrap(), record().checksum().unwrap());
        assert_eq!((found.tensor("matrix").unwrap().shape.as_slice(), found.facts.len()), (&[2, 1][..], 1));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_element_type_is_written_and_read() {
        let path = scratch("types");
        let mut record = Record::default();
        for dtype in DType::ALL {
            record.put_tensor(&dtype.to_string(), &[3], Buffer::zeroed(dtype, 3).unwrap()).unwrap();
        }
        write(&path, &record).unwrap();
        let found = read(&path).unwrap();
        for dtype in DType::ALL {
            assert_eq!(found.tensor(&dtype.to_string()).unwrap().values.dtype(), dtype);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn no_file_that_was_cut_or_changed_is_taken_for_a_whole_one() {
        let path = scratch("damage");
        write(&path, &record()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            assert!(read(&path).is_err(), "{} of {} bytes", bytes.len(), whole.len());
        };
        (0..whole.len()).for_each(|len| refused(&whole[..len]));
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            refused(&changed);
        }
        refused(&vec![0xff; 1000]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_of_another_version_is_said_to_be_one() {
        let path = scratch("version");
        write(&path, &record()).unwrap();
        let of = |text: &[u8], bytes: &[u8]| bytes.windows(text.len()).position(|part| part == text).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let at = of(VERSION.as_bytes(), &bytes) + VERSION.len() - 1;
        bytes[at] = b'1';
        std::fs::write(&path, &bytes).unwrap();
        let error = read(&path).err().unwrap().to_string();
        assert!(error.contains("is of the format `hexagram 1`") && !error.contains("damaged"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(store(full, b"a record").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn what_is_in_the_way_is_replaced_only_if_it_is_a_file_or_a_link() {
        let folder = scratch("in-the-way");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("here");
        let elsewhere = folder.join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        write(&path, &record()).unwrap();
        write(&path, &record()).unwrap();
        assert!(read(&path).is_ok() && fs::read(&elsewhere).unwrap() == b"kept");
        fs::remove_file(&path).unwrap();
        let _socket = UnixListener::bind(&path).unwrap();
        let error = write(&path, &record()).unwrap_err().to_string();
        assert!(error.contains("File exists") && fs::symlink_metadata(&path).is_ok(), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
