//! A program in which a system call does nothing and says that it succeeded: a broker that does not force, out of the very
//! binary that users run.

use crate::device::Failure;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes that program. Comes back only where this fails.
pub fn run(call: &str, command: &[OsString]) -> Failure {
    let number = match call {
        // Plimsoll forces files with the one and directories with the other.
        "fdatasync" => libc::SYS_fdatasync,
        "fsync" => libc::SYS_fsync,
        other => return Failure::from(format!("{other} can't be left out")),
    };
    let rules = BTreeMap::from([(number, Vec::new())]);
    let here = std::env::consts::ARCH.try_into();
    let filter = here.and_then(|here| SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(0), here));
    let installed = filter.and_then(BpfProgram::try_from).map_err(|e| e.to_string());
    if let Err(error) = installed.and_then(|program| seccompiler::apply_filter(&program).map_err(|e| e.to_string())) {
        return Failure::from(format!("a system call can't be left out here: {error}"));
    }
    let [program, args @ ..] = command else { return Failure::from("no program".to_owned()) };
    Failure::from(format!("{}: {}", program.to_string_lossy(), Command::new(program).args(args).exec()))
}
