//! A trace as a file in the Chrome trace event format, which ui.perfetto.dev opens.
//!
//! A rank is a process there, with a track for its steps, one for its training thread, one for its background work
//! (concurrent operations merged), and one for each bucket, so that concurrent hooks are visible next to each other;
//! and a counter of the bytes sent. The spans of its device are on tracks after these: one for the passes of the
//! framework, and one for each bucket.

use super::intervals::Union;
use super::report::{RankReport, StepReport};
use super::{Kind, Place, RankTrace, Span, Trace};
use hexagram_logical::output;
use hexagram_logical::{Error, Result};
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::Path;

/// Index of the first tracks of a rank; those of buckets follow, then those of its device.
const STEPS: usize = 0;
const TRAINING: usize = 1;
const BACKGROUND: usize = 2;
const BUCKETS: usize = 3;

impl Trace {
    /// Writes the trace to a file, atomically: an existing file is replaced at the end. Links are followed, and their
    /// target is replaced; devices and pipes are written directly.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        output::write(path, |out| self.write(out)).map_err(|cause| refused(path, cause))
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // Clocks are aligned, but a rank may have begun before rank 0; viewers do not support negative times.
        let first = self.ranks.iter().flat_map(|rank| &rank.spans).map(|span| span.start).min().unwrap_or(0);
        let report = self.report();
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{")?;
        writeln!(out, "\"algorithm\":{},\"ranks\":{},", JsonString(&self.algorithm), self.ranks.len())?;
        let errors: Vec<String> = self.ranks.iter().map(|rank| clock_error(rank).to_string()).collect();
        let dropped: Vec<String> = self.ranks.iter().map(|rank| rank.dropped.to_string()).collect();
        writeln!(
            out,
            "\"clock_error_us\":[{}],\"dropped_spans\":[{}],",
            errors.join(","),
            dropped.join(",")
        )?;
        writeln!(out, "\"report\":{}}},", JsonString(&report.to_string()))?;
        writeln!(out, "\"traceEvents\":[")?;
        let mut events = EventWriter { out, buckets: &self.buckets, first, begun: false };
        for (rank, (trace, report)) in self.ranks.iter().zip(&report.ranks).enumerate() {
            events.rank(rank, trace, report)?;
        }
        writeln!(out, "\n]}}")
    }
}

/// Fails if a trace could not be saved there: call it before the training, not after.
///
/// # Errors
/// [`Error::System`] as [`Trace::save`].
pub fn check_writable(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    output::check_writable(path).map_err(|cause| refused(path, cause))
}

fn refused(path: &Path, cause: io::Error) -> Error {
    let remedy = "name a file in a folder that exists, that you may write to, and that has room";
    Error::system(format!("write the trace {}", path.display()), cause, remedy)
}

/// Returns the category of a kind, for filters in viewers.
fn category(kind: Kind) -> &'static str {
    match kind {
        kind if kind.is_communication() => "communication",
        kind if kind.is_compute() => "compute",
        _ => "other",
    }
}

fn clock_error(rank: &RankTrace) -> Micros {
    Micros(rank.clock_error.as_nanos() as i64)
}

struct EventWriter<'a, W> {
    out: &'a mut W,
    /// Parameters of each bucket.
    buckets: &'a [String],
    /// Earliest moment.
    first: i64,
    begun: bool,
}

impl<W: Write> EventWriter<'_, W> {
    fn rank(&mut self, rank: usize, trace: &RankTrace, report: &RankReport) -> io::Result<()> {
        let name = format!("rank {rank} on {}", trace.host);
        let labels = format!("pid {}, clock ± {} µs", trace.pid, clock_error(trace));
        self.metadata(rank, STEPS, "process_name", &format!("\"name\":{}", JsonString(&name)))?;
        self.metadata(rank, STEPS, "process_labels", &format!("\"labels\":{}", JsonString(&labels)))?;
        self.metadata(rank, STEPS, "process_sort_index", &format!("\"sort_index\":{rank}"))?;
        let (device, spans): (Vec<&Span>, Vec<&Span>) =
            trace.spans.iter().partition(|span| span.place == Place::Device);
        let (beside, spans): (Vec<&Span>, Vec<&Span>) =
            spans.into_iter().partition(|span| span.kind == Kind::Background);
        let hooks = spans.iter().filter(|span| span.kind.is_communication());
        let buckets: BTreeSet<usize> = hooks.map(|span| span.bucket).collect();
        let behind = BUCKETS + buckets.last().map_or(0, |last| last + 1);
        let mut named = vec![(STEPS, "steps".to_owned()), (TRAINING, "training thread".to_owned())];
        if !beside.is_empty() {
            named.push((BACKGROUND, "background".to_owned()));
        }
        let buckets = buckets.into_iter().map(|bucket| {
            let outline = self.buckets.get(bucket).map_or_else(String::new, |outline| format!(": {outline}"));
            (BUCKETS + bucket, format!("bucket {bucket}{outline}"))
        });
        let buckets: Vec<(usize, String)> = buckets.collect();
        for (track, name) in named.into_iter().chain(buckets) {
            self.track(rank, track, &name)?;
        }
        report.steps.iter().try_for_each(|step| self.step(rank, step))?;
        spans.into_iter().try_for_each(|span| self.span(rank, span))?;
        self.background(rank, &beside)?;
        self.device(rank, behind, &device)
    }

    fn track(&mut self, rank: usize, track: usize, name: &str) -> io::Result<()> {
        self.metadata(rank, track, "thread_name", &format!("\"name\":{}", JsonString(name)))?;
        self.metadata(rank, track, "thread_sort_index", &format!("\"sort_index\":{track}"))
    }

    /// Writes the spans of a device, on tracks from `first` on.
    fn device(&mut self, rank: usize, first: usize, spans: &[&Span]) -> io::Result<()> {
        // A step of the engine optimizer is for one bucket, so it has a size.
        let is_of_bucket = |span: &Span| span.kind.is_communication() || span.bytes > 0;
        let track = |span: &Span| if is_of_bucket(span) { first + 1 + span.bucket } else { first };
        let tracks: BTreeSet<usize> = spans.iter().map(|span| track(span)).collect();
        for at in tracks {
            let name = match at.checked_sub(first + 1) {
                None => "device: passes".to_owned(),
                Some(bucket) => format!("device: bucket {bucket}"),
            };
            self.track(rank, at, &name)?;
        }
        for span in spans {
            let Span { kind, step, bucket, bytes, start, end, .. } = **span;
            let mut args = format!("\"step\":{step},\"place\":\"device\"");
            if is_of_bucket(span) {
                args += &format!(",\"bucket\":{bucket},\"bytes\":{bytes}");
            }
            self.complete(rank, track(span), kind.name(), category(kind), (start, end), &args)?;
        }
        Ok(())
    }

    fn step(&mut self, rank: usize, step: &StepReport) -> io::Result<()> {
        let shares = &step.shares;
        let args = format!(
            "\"step\":{},\"compute_only_us\":{},\"overlapped_us\":{},\"communication_only_us\":{},\"neither_us\":{}",
            step.step,
            Micros(shares.compute_only as i64),
            Micros(shares.overlapped as i64),
            Micros(shares.communication_only as i64),
            Micros(shares.neither as i64)
        );
        self.complete(rank, STEPS, &format!("step {}", step.step), "step", (step.start, step.end), &args)
    }

    fn span(&mut self, rank: usize, span: &Span) -> io::Result<()> {
        let Span { kind, step, bucket, bytes, start, end, sent, .. } = *span;
        if !kind.is_communication() {
            return self.complete(
                rank,
                TRAINING,
                kind.name(),
                category(kind),
                (start, end),
                &format!("\"step\":{step}"),
            );
        }
        let args = format!("\"step\":{step},\"bucket\":{bucket},\"bytes\":{bytes}");
        self.complete(rank, BUCKETS + bucket, kind.name(), category(kind), (start, end), &args)?;
        self.sent(rank, end, sent)
    }

    fn background(&mut self, rank: usize, spans: &[&Span]) -> io::Result<()> {
        for (start, end) in Union::of(spans.iter().map(|span| (span.start, span.end))).intervals() {
            let name = Kind::Background.name();
            self.complete(rank, BACKGROUND, name, "communication", (start, end), "")?;
        }
        spans.iter().try_for_each(|span| self.sent(rank, span.end, span.sent))
    }

    fn sent(&mut self, rank: usize, at: i64, sent: u64) -> io::Result<()> {
        let when = Micros(at - self.first);
        self.event(format_args!(
            "\"name\":\"bytes sent\",\"ph\":\"C\",\"pid\":{rank},\"ts\":{when},\"args\":{{\"bytes\":{sent}}}"
        ))
    }

    fn complete(
        &mut self,
        rank: usize,
        track: usize,
        name: &str,
        category: &str,
        (start, end): (i64, i64),
        args: &str,
    ) -> io::Result<()> {
        let when = Micros(start - self.first);
        let long = Micros(end - start);
        self.event(format_args!(
            "\"name\":{},\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":{rank},\"tid\":{track},\"ts\":{when},\"dur\":{long},\
             \"args\":{{{args}}}",
            JsonString(name)
        ))
    }

    fn metadata(&mut self, rank: usize, track: usize, name: &str, args: &str) -> io::Result<()> {
        self.event(format_args!(
            "\"name\":\"{name}\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{track},\"args\":{{{args}}}"
        ))
    }

    fn event(&mut self, fields: fmt::Arguments<'_>) -> io::Result<()> {
        let comma = if std::mem::replace(&mut self.begun, true) { ",\n" } else { "" };
        write!(self.out, "{comma}{{{fields}}}")
    }
}

/// Nanoseconds, written in microseconds.
struct Micros(i64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

/// String in JSON.
struct JsonString<'a>(&'a str);

impl Display for JsonString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\0'..=' ' if character != ' ' => write!(f, "\\u{:04x}", u32::from(character))?,
                _ => write!(f, "{character}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{rank, trace};
    use super::*;
    use serde_json::Value;
    use std::fs::{self, File};
    use std::io::{BufWriter, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    fn example() -> Trace {
        let spans = [
            (Kind::Between, 0, -1_500, 0),
            (Kind::Backward, 0, 0, 2_000_001),
            (Kind::Waiting, 0, 2_000_001, 3_000_000),
            (Kind::GradientsReady, 0, 1_000_000, 2_500_000),
            (Kind::Background, 0, 1_200_000, 1_500_000),
            (Kind::Background, 0, 1_400_000, 1_700_000),
        ];
        trace(vec![rank("a \"quoted\"\\\n host", &spans), rank("höst", &spans[..2])])
    }

    #[test]
    fn the_file_is_json_with_the_events_that_were_recorded() {
        let mut text = Vec::new();
        example().write(&mut text).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(file["otherData"]["ranks"], 2);
        assert_eq!(file["otherData"]["clock_error_us"][1], 1.5);
        let events = file["traceEvents"].as_array().unwrap();
        let find = |rank: u64, name: &str| {
            let found = events.iter().find(|event| event["pid"] == rank && event["name"] == name);
            found.unwrap_or_else(|| panic!("no {name} of rank {rank}"))
        };
        assert_eq!(find(0, "process_name")["args"]["name"], "rank 0 on a \"quoted\"\\\n host");
        assert_eq!(find(1, "process_name")["args"]["name"], "rank 1 on höst");
        let hook = find(0, "gradients_ready");
        assert_eq!(
            (&hook["ph"], &hook["cat"], &hook["tid"]),
            (&"X".into(), &"communication".into(), &6.into())
        );
        assert_eq!((&hook["ts"], &hook["dur"]), (&1001.5.into(), &1500.0.into()));
        assert_eq!((&hook["args"]["bucket"], &hook["args"]["bytes"]), (&3.into(), &4096.into()));
        let beside: Vec<_> = events.iter().filter(|event| event["name"] == "background").collect();
        assert_eq!(beside.len(), 1, "two that overlap are one");
        assert_eq!((&beside[0]["tid"], &beside[0]["dur"]), (&2.into(), &500.0.into()));
        assert_eq!(find(0, "bytes sent")["args"]["bytes"], 99);
        assert_eq!(
            (&find(1, "backward")["ts"], &find(1, "backward")["dur"]),
            (&1.5.into(), &2000.001.into())
        );
        assert_eq!(find(0, "step 0")["args"]["overlapped_us"], 1000.001);
        assert!(events.iter().all(|event| event["ts"].as_f64().is_none_or(|ts| ts >= 0.0)));
    }

    /// Events of a trace of hosts, as other programs read them.
    const OF_HOSTS: &str = r#"{"name":"process_labels","ph":"M","pid":0,"tid":0,"args":{"labels":"pid 7, clock ± 1.500 µs"}},
{"name":"process_sort_index","ph":"M","pid":0,"tid":0,"args":{"sort_index":0}},
{"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"steps"}},
{"name":"thread_sort_index","ph":"M","pid":0,"tid":0,"args":{"sort_index":0}},
{"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"training thread"}},
{"name":"thread_sort_index","ph":"M","pid":0,"tid":1,"args":{"sort_index":1}},
{"name":"thread_name","ph":"M","pid":0,"tid":6,"args":{"name":"bucket 3"}},
{"name":"thread_sort_index","ph":"M","pid":0,"tid":6,"args":{"sort_index":6}},
{"name":"forward","cat":"compute","ph":"X","pid":0,"tid":1,"ts":0.000,"dur":2.000,"args":{"step":0}},
{"name":"gradients_ready","cat":"communication","ph":"X","pid":0,"tid":6,"ts":1.000,"dur":1.500,"args":{"step":0,"bucket":3,"bytes":4096}},
{"name":"bytes sent","ph":"C","pid":0,"ts":2.500,"args":{"bytes":99}}
]}
"#;

    #[test]
    fn a_trace_of_hosts_is_written_as_ever() {
        let spans = [(Kind::Forward, 0, 0, 2_000), (Kind::GradientsReady, 0, 1_000, 2_500)];
        let mut text = Vec::new();
        trace(vec![rank("a", &spans)]).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.split_once("}},\n").unwrap().1, OF_HOSTS, "{text}");
    }

    #[test]
    fn a_devices_spans_are_on_tracks_behind_the_hosts() {
        let mut trace = example();
        let optimizer = Span { kind: Kind::Optimizer, ..trace.ranks[0].spans[3] };
        let done: Vec<Span> =
            [0, 1, 3].into_iter().map(|at| trace.ranks[0].spans[at]).chain([optimizer]).collect();
        trace.ranks[0].spans.extend(done.into_iter().map(|span| Span { place: Place::Device, ..span }));
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let named = |track: u64| {
            let of_track = |event: &&Value| event["name"] == "thread_name" && event["tid"] == track;
            events.iter().find(of_track).map(|event| event["args"]["name"].as_str().unwrap())
        };
        let tracks: Vec<_> = (0..12).map(named).collect();
        let named = [6, 7, 11].map(|track| tracks[track]);
        assert_eq!(named, [Some("bucket 3"), Some("device: passes"), Some("device: bucket 3")]);
        let device: Vec<_> = events.iter().filter(|event| event["args"]["place"] == "device").collect();
        let told: Vec<_> = device
            .iter()
            .map(|event| (event["name"].as_str().unwrap(), event["tid"].as_u64().unwrap()))
            .collect();
        let want = [("between steps", 7), ("backward", 7), ("gradients_ready", 11), ("optimizer", 11)];
        assert_eq!(told, want);
        assert_eq!((&device[2]["cat"], &device[2]["args"]["bytes"]), (&"communication".into(), &4096.into()));
        assert_eq!(device[3]["args"]["bucket"], 3);
    }

    #[test]
    fn any_text_is_valid_json() {
        let all: String = ('\0'..'\u{3000}').chain(['😀', '\u{10ffff}']).collect();
        let read: String = serde_json::from_str(&JsonString(&all).to_string()).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn a_save_replaces_the_whole_file_or_leaves_it() {
        let folder = std::env::temp_dir().join(format!("hexagram-trace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("trace.json");
        check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        example().save(&path).unwrap();
        let _: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let nowhere = folder.join("missing").join("trace.json");
        for error in [example().save(&nowhere), check_writable(&nowhere), check_writable(&folder)] {
            let text = error.unwrap_err().to_string();
            assert!(
                text.contains("cannot write the trace") && text.contains("in a folder that exists"),
                "{text}"
            );
        }
        assert!(example().save(&folder).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no drafts are left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_stay_and_what_is_no_file_is_written_to() {
        let folder = std::env::temp_dir().join(format!("hexagram-trace-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("real")).unwrap();
        let link = |name: &str, to: &str| {
            let link = folder.join(name);
            symlink(to, &link).unwrap();
            link
        };
        fs::write(folder.join("real/old.json"), "old").unwrap();
        for (name, to) in [("old", "real/old.json"), ("new", "real/new.json"), ("null", "/dev/null")] {
            let link = link(name, to);
            check_writable(&link).unwrap();
            example().save(&link).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(to));
        }
        for name in ["old.json", "new.json"] {
            let text = fs::read(folder.join("real").join(name)).unwrap();
            let _: Value = serde_json::from_slice(&text).unwrap();
        }
        // A pipe, as passed by a shell.
        let (mut reader, writer) = io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", writer.as_raw_fd());
        check_writable(&pipe).unwrap();
        example().save(link("pipe", &pipe)).unwrap();
        drop(writer);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        let _: Value = serde_json::from_slice(&text).unwrap();
        assert!(example().save(link("round", "round")).is_err(), "a link to itself");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 6, "no drafts are left");
        assert_eq!(fs::read_dir(folder.join("real")).unwrap().count(), 2, "no drafts are left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut out = BufWriter::new(full);
        let outcome = example().write(&mut out).and_then(|()| out.flush());
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
