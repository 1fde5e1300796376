//! What the tests of this package share.

pub mod broker;
pub mod draws;
pub mod kills;
pub mod memory;
pub mod mount;
pub mod orders;
pub mod page;
pub mod postgres;
pub mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// All files below `dir` whose name ends in `suffix`, sorted.
pub fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Everything in a directory but the lock file, which every process that tries the directory writes its name into: each
/// file's path and bytes.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = files(dir, "").into_iter().filter(|path| !path.ends_with("LOCK"));
    paths.map(|path| (path.clone(), std::fs::read(&path).expect("a file that is there"))).collect()
}
