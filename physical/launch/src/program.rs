//! The path of this program, used to start its ranks.

use hexagram_physical::{Error, Result};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the path by which this program was started, if it still leads to its file; otherwise the path of the file.
///
/// The two differ by a symbolic link, which some programs inspect: the interpreter of a Python virtual environment is
/// a link, and finds its packages next to it.
///
/// # Errors
/// [`Error::System`] if the system does not report the file of the program.
pub fn this_program() -> Result<PathBuf> {
    let own = env::current_exe()
        .map_err(|cause| Error::system("find this program's own file", cause, "start it by its path"))?;
    let called = env::args_os().next().unwrap_or_default();
    Ok(found(&called, env::var_os("PATH"), &own).unwrap_or(own))
}

/// Returns the first path that the name of a program may mean and that leads to the file `own`.
fn found(called: &OsString, path: Option<OsString>, own: &Path) -> Option<PathBuf> {
    let called = Path::new(called);
    let leads_here = |candidate: &PathBuf| candidate.canonicalize().is_ok_and(|file| file == own);
    if called.components().count() > 1 || called.is_absolute() {
        return env::current_dir().ok().map(|here| here.join(called)).filter(leads_here);
    }
    let folders: Vec<PathBuf> = env::split_paths(&path?).collect();
    folders.into_iter().map(|folder| folder.join(called)).find(leads_here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_to_the_program_is_kept_and_what_leads_elsewhere_is_not() {
        let folder = env::temp_dir().join(format!("hexagram-program-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        let own = folder.join("own");
        fs::write(&own, "").unwrap();
        let own = own.canonicalize().unwrap();
        let link = folder.join("bin/link");
        symlink(&own, &link).unwrap();
        fs::write(folder.join("bin/other"), "").unwrap();
        let path = || Some(OsString::from(format!("/nowhere:{}", folder.join("bin").display())));
        let found = |called: &str| found(&called.into(), path(), &own);
        assert_eq!(found("link"), Some(link.clone()));
        assert_eq!(found(link.to_str().unwrap()), Some(link));
        for elsewhere in ["other", "missing", "", "/missing/link"] {
            assert_eq!(found(elsewhere), None, "{elsewhere}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
