//! The file of the suite's records, a line of JSON for each training. The suite reads old records, and appends new
//! ones.

use crate::suite::SuiteRecord;
use hexagram::physical::{input, output};
use hexagram::{Error, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Maximum number of bytes of the file, some fifty times those of the whole suite.
const LONGEST: u64 = 1 << 30;

/// Records of trainings, in memory and in the file to which this suite alone appends.
pub(super) struct RecordFile {
    path: PathBuf,
    file: File,
    records: Vec<SuiteRecord>,
}

impl RecordFile {
    /// Opens the file, or creates it. If a killed suite left an incomplete last line, removes it: that training runs
    /// again.
    ///
    /// # Errors
    /// As [`read`]; [`Error::System`] if the file cannot be written, [`Error::Usage`] while another suite appends to
    /// it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut file = locked(path)?;
        let RecordsFile { records, whole, ended } = content(path)?;
        let end: &[u8] = if ended { b"" } else { b"\n" };
        let mended = file.set_len(whole as u64).and_then(|()| file.write_all(end));
        mended.map_err(|cause| not_written(path, cause))?;
        Ok(RecordFile { path: path.to_owned(), file, records })
    }

    /// Returns the records, in the order of the file.
    pub(super) fn records(&self) -> &[SuiteRecord] {
        &self.records
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be written.
    pub(super) fn push(&mut self, record: SuiteRecord) -> Result<()> {
        // In one piece, so that a suite that is ended leaves whole lines.
        let line = format!("{}\n", record.json());
        self.file.write_all(line.as_bytes()).map_err(|cause| not_written(&self.path, cause))?;
        self.records.push(record);
        Ok(())
    }

    /// Removes all records but those that `keep` returns true for.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be replaced; it is then unchanged.
    pub(super) fn retain(&mut self, keep: impl Fn(&SuiteRecord) -> bool) -> Result<()> {
        self.records.retain(keep);
        let write = |out: &mut dyn Write| {
            self.records.iter().try_for_each(|record| writeln!(out, "{}", record.json()))
        };
        output::write(&self.path, |out| write(out)).map_err(|cause| not_written(&self.path, cause))?;
        self.file = locked(&self.path)?;
        Ok(())
    }
}

/// Reads the records and does not change the file; no records if the file is missing.
///
/// # Errors
/// [`Error::System`] for anything but a regular file, or one that cannot be read; [`Error::Usage`] with the first
/// line that is not a record.
pub(super) fn read(path: &Path) -> Result<Vec<SuiteRecord>> {
    content(path).map(|content| content.records)
}

/// Content of a file of records.
struct RecordsFile {
    records: Vec<SuiteRecord>,
    /// Number of bytes without the incomplete last line of a killed suite.
    whole: usize,
    /// True if these bytes end with a newline, or if there are none.
    ended: bool,
}

fn content(path: &Path) -> Result<RecordsFile> {
    let remedy = "choose a --records file with a line of JSON for each training, or a new one";
    let bytes = match input::read(path, LONGEST) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|cause| Error::system(format!("read {}", path.display()), cause, remedy))?,
    };
    let mut records = Vec::new();
    let mut whole = 0;
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        match SuiteRecord::parse_line(path, number, line) {
            Ok(record) => records.push(record),
            Err(_) if !line.ends_with(b"\n") && SuiteRecord::may_begin(line) => break,
            Err(error) => return Err(error),
        }
        whole += line.len();
    }
    let ended = bytes[..whole].last().is_none_or(|last| *last == b'\n');
    Ok(RecordsFile { records, whole, ended })
}

/// Opens the file to append to it, and locks it as long as it is open.
fn locked(path: &Path) -> Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = std::fs::create_dir_all(folder)
        // With `read`, as a pipe without a reader would not be opened before there is one.
        .and_then(|()| OpenOptions::new().create(true).read(true).append(true).open(path))
        .map_err(|cause| not_written(path, cause))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let what = format!("another suite is appending to {}", path.display());
            Err(Error::usage(what, "wait until it has ended, or choose a different --records file"))
        }
        // Some network file systems have no locks.
        Err(TryLockError::Error(_)) | Ok(()) => Ok(file),
    }
}

fn not_written(path: &Path, cause: io::Error) -> Error {
    Error::system(
        format!("write {}", path.display()),
        cause,
        "check the permissions and the free space there",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"algorithm":"d-psgd","task":"digits","partition":"equal","ranks":4,"seed":0,"trigram":"☱","synchronous":true,"learning_rate":1.0,"own_loss":0.3,"distance":null,"curve":[[300,0.3,0.75,0.0,2.0,2,1]]}"#;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hexagram-records-{name}-{}.jsonl", std::process::id()))
    }

    #[test]
    fn what_was_left_of_a_line_is_cut_off_and_nothing_else() {
        let path = scratch("left");
        // The last one ends in the middle of a character.
        for rest in
            [&b"{"[..], br#"{"algorithm":"d-psgd","tri"#, b"{\"algorithm\":\"d-psgd\",\"trigram\":\"\xe2\x98"]
        {
            std::fs::write(&path, [RECORD.as_bytes(), b"\n", rest].concat()).unwrap();
            assert_eq!(read(&path).unwrap().len(), 1);
            // A different process may still be writing the rest.
            assert!(std::fs::read(&path).unwrap().ends_with(rest));
            assert_eq!(RecordFile::open(&path).unwrap().records().len(), 1);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{RECORD}\n"));
        }
        std::fs::write(&path, RECORD).unwrap();
        let mut file = RecordFile::open(&path).unwrap();
        file.push(file.records()[0].clone()).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_record_is_named_with_its_file_and_line() {
        let path = scratch("garbage");
        for (other, line) in [
            ("a file of somebody else".to_owned(), 1),
            ("garbage\n{\"algorithm\":".to_owned(), 1),
            (format!("{RECORD}\n{{\"algorithm\":1}}\n"), 2),
        ] {
            std::fs::write(&path, &other).unwrap();
            let said = RecordFile::open(&path).err().unwrap().to_string();
            assert!(said.contains(&format!("{}, line {line}: `", path.display())), "{said}");
            assert!(said.contains("is not a record of a training") && !said.contains('\n'), "{said}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
        std::fs::remove_file(&path).unwrap();
        for (special, said) in [("/dev/full", "a pipe or a device"), ("/dev", "folder")] {
            let error = read(Path::new(special)).unwrap_err().to_string();
            assert!(
                error.contains(special) && error.contains(said) && error.contains("--records"),
                "{error}"
            );
        }
        assert!(RecordFile::open(Path::new("/dev/full")).is_err());
    }

    #[test]
    fn one_suite_at_a_time_appends_also_after_it_has_replaced_the_file() {
        let path = scratch("lock");
        std::fs::write(&path, format!("{RECORD}\n{}\n", RECORD.replace("d-psgd", "extra"))).unwrap();
        let mut file = RecordFile::open(&path).unwrap();
        let refused = || RecordFile::open(&path).err().unwrap().to_string();
        assert!(refused().contains("another suite is appending to"), "{}", refused());
        file.retain(|record| record.place.algorithm == "extra").unwrap();
        assert!(refused().contains("another suite is appending to"), "{}", refused());
        file.push(file.records()[0].clone()).unwrap();
        drop(file);
        let names: Vec<String> =
            RecordFile::open(&path).unwrap().records().iter().map(|r| r.place.algorithm.clone()).collect();
        assert_eq!(names, ["extra", "extra"]);
        std::fs::remove_file(&path).unwrap();
    }
}
