//! Memory of this process, as the kernel counts it.

use std::fs;

/// Bytes in use.
pub(crate) fn resident() -> u64 {
    field("VmRSS:")
}

/// Most bytes in use since the last [`forget_peak`].
pub(crate) fn peak() -> u64 {
    field("VmHWM:")
}

/// From now on [`peak`] counts anew.
pub(crate) fn forget_peak() {
    // Resets the peak alone. Without it the peak is that of the whole process, which is not less.
    if let Err(error) = fs::write("/proc/self/clear_refs", "5") {
        eprintln!("the peak cannot be reset: {error}");
    }
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

fn field(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|value| value.parse::<u64>().ok());
    kibibytes.expect("a number of kB") * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells() {
        forget_peak();
        assert!(resident() > 0 && peak() >= resident() / 2);
    }
}
