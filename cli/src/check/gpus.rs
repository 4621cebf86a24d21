//! GPUs: whether this build supports them, which of them the driver reports, and how ranks would use them.

#[cfg(feature = "cuda")]
use super::libraries::find;
#[cfg(not(feature = "cuda"))]
use super::libraries::place;
use super::report::CheckReport;
#[cfg(feature = "cuda")]
use super::self_test::DEADLINE;
#[cfg(feature = "cuda")]
use hexagram::cuda::{self, Description};
#[cfg(feature = "cuda")]
use hexagram::launch::{as_rank, as_threads};
#[cfg(feature = "cuda")]
use hexagram::physical::device::DeviceChoice;
#[cfg(feature = "cuda")]
use hexagram::{Buffer, Communicator, Error, ReduceOp, Result, TransportKind, World};

/// Library of NVIDIA's driver.
const DRIVER: &str = "libcuda.so.1";

/// Reports the location of the driver library, which this build does not use.
#[cfg(not(feature = "cuda"))]
pub(super) fn check(report: &mut CheckReport) {
    report.title("GPUs");
    report.note(&format!(
        "CUDA: not built in, `cargo install hexagram-cli --features cuda` adds it; {}",
        place(DRIVER, "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH")
    ));
}

/// Reports the driver, its GPUs, and which GPUs access each other.
#[cfg(feature = "cuda")]
pub(super) fn check(report: &mut CheckReport) {
    report.title("GPUs");
    let found = cuda::driver_version().and_then(|version| Ok((version, cuda::devices()?)));
    let (version, devices) = match found {
        Ok(found) => found,
        Err(error) if find(DRIVER).is_none() => return report.note(&format!("CUDA: built in; {error}")),
        Err(error) => return report.bad(&format!("CUDA: built in; {error}")),
    };
    let (major, minor) = version;
    report.good(&format!("CUDA: built in; the driver is for CUDA {major}.{minor}{}", module()));
    if devices.is_empty() {
        return report.note("the driver reports no GPU; CUDA_VISIBLE_DEVICES may hide some");
    }
    lines(&devices).iter().for_each(|line| report.good(line));
    match cuda::peers() {
        Ok(_) if devices.len() == 1 => {}
        Ok(peers) => report.note(&format!("peer access: {}", reached(&peers))),
        Err(error) => report.note(&format!("peer access: {error}")),
    }
    match add() {
        Ok(said) => report.good(&format!("two ranks add numbers: {said}")),
        Err(error) => report.bad(&format!("two ranks add numbers: {error}")),
    }
}

/// Elements that two ranks add up: enough for several messages.
#[cfg(feature = "cuda")]
const LENGTH: usize = 1 << 18;

/// Adds numbers on GPUs with two ranks of this process. Returns the path of their messages, in words.
#[cfg(feature = "cuda")]
fn add() -> Result<String> {
    let rank = |world: World| -> Result<Option<TransportKind>> {
        let comm = Communicator::open(&world, 0)?;
        comm.set_deadline(DEADLINE);
        let queue = DeviceChoice::Cuda(None).queue(comm.rank())?;
        let path = comm.attach(&queue)?;
        let mut sums = Buffer::from_slice_on(&queue, &[1.5 + comm.rank() as f32; LENGTH])?;
        comm.block_on(comm.all_reduce(&mut sums, ReduceOp::Sum))?;
        match sums.host::<f32>()?.iter().all(|sum| *sum == 4.0) {
            true => Ok(path),
            false => {
                Err(Error::setup("a sum on the GPUs is wrong", "do not use these GPUs, and report this"))
            }
        }
    };
    let ranks = as_threads(2, |world| as_rank(world, rank))?;
    let path = ranks.into_iter().collect::<Result<Vec<_>>>()?.first().copied().flatten();
    let by = path.map_or_else(|| "through the host".to_owned(), |path| format!("by {path}"));
    Ok(format!("right, and messages travel {by}"))
}

/// Returns the version of the kernel module of the driver, if it reports one.
#[cfg(feature = "cuda")]
fn module() -> String {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    version.lines().next().map(|line| format!(" ({line})")).unwrap_or_default()
}

/// Returns a line about each GPU, in columns.
#[cfg(any(test, feature = "cuda"))]
fn columns(rows: &[[String; 5]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(feature = "cuda")]
fn lines(devices: &[Description]) -> Vec<String> {
    let row = |device: &Description| {
        let Description { index, name, uuid, capability: (major, minor), memory } = device;
        let gibibytes = *memory as f64 / f64::from(1 << 30);
        [
            format!("cuda:{index}"),
            name.clone(),
            format!("{gibibytes:.1} GiB"),
            format!("compute capability {major}.{minor}"),
            spelled(uuid),
        ]
    };
    columns(&devices.iter().map(row).collect::<Vec<_>>())
}

/// Returns the identity of a GPU as `nvidia-smi -L` prints it.
#[cfg(any(test, feature = "cuda"))]
fn spelled(uuid: &[u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16].map(|group| hex(&uuid[group]));
    format!("GPU-{}", groups.join("-"))
}

/// Describes which GPUs access the memory of each other.
#[cfg(any(test, feature = "cuda"))]
fn reached(peers: &[Vec<usize>]) -> String {
    if peers.iter().all(|reached| reached.len() + 1 == peers.len()) {
        return "every GPU accesses the memory of every other GPU".to_owned();
    }
    let told = |(index, reached): (usize, &Vec<usize>)| {
        let others: Vec<String> = reached.iter().map(|other| format!("cuda:{other}")).collect();
        (!others.is_empty()).then(|| format!("cuda:{index} reaches {}", others.join(" and ")))
    };
    let told: Vec<String> = peers.iter().enumerate().filter_map(told).collect();
    if told.is_empty() { "no GPU accesses the memory of a different GPU".to_owned() } else { told.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        let rows =
            [row(["cuda:0", "A", "80.0 GiB", "9.0", "x"]), row(["cuda:1", "Long", "8.0 GiB", "7.0", "yz"])];
        assert_eq!(columns(&rows), ["cuda:0  A     80.0 GiB  9.0  x", "cuda:1  Long  8.0 GiB   7.0  yz"]);
    }

    #[test]
    fn identities_are_spelled_as_nvidia_smi_does() {
        let uuid = std::array::from_fn(|at| 17 * at as u8);
        assert_eq!(spelled(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn peers_are_told_in_words() {
        assert_eq!(reached(&[vec![1], vec![0]]), "every GPU accesses the memory of every other GPU");
        assert_eq!(reached(&[vec![], vec![]]), "no GPU accesses the memory of a different GPU");
        assert_eq!(
            reached(&[vec![1, 2], vec![0], vec![]]),
            "cuda:0 reaches cuda:1 and cuda:2, cuda:1 reaches cuda:0"
        );
    }
}
