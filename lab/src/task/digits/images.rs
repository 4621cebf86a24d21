//! Images of handwritten digits: small enough to compile in, real enough that accuracy means something; or those of a
//! file.
//!
//! Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
//! 1998; see `lab/data/README.md`.

use flate2::bufread::MultiGzDecoder;
use hexagram::physical::{hash, input};
use hexagram::{Error, Result};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Pixels of an image: 8 rows of 8.
pub const PIXELS: usize = 64;
/// Rows and columns of an image.
pub const SIDE: usize = PIXELS.isqrt();
/// Different labels: the digits 0 to 9.
pub const CLASSES: usize = 10;
/// The value of a black pixel in the file; white is 0.
const INK: f32 = 16.0;
/// Largest file, and largest content after decompression, in bytes: millions of images.
const LONGEST: u64 = 1 << 30;
/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Number of characters of a wrong value that are shown.
const SHOWN: usize = 40;
/// One of this many images is held out.
const HELD_OUT_EVERY: usize = 5;

const EMBEDDED: &[u8] = include_bytes!("../../../data/digits.csv.gz");

/// Images and their labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    pixels: Vec<f32>,
    labels: Vec<usize>,
}

impl Images {
    /// Returns the 1797 images compiled into the program.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), if the program was built from a damaged data file.
    pub fn embedded() -> Result<Self> {
        parse(MultiGzDecoder::new(EMBEDDED), Path::new("lab/data/digits.csv.gz"))
    }

    /// Reads images from a file: a line an image, 64 pixels from 0 (white) to 16 (black), then the label from
    /// 0 to 9, separated by commas, without a header. A gzip file is decompressed.
    ///
    /// # Errors
    ///
    /// [`Error::System`] or [`Error::Usage`], with the file and the line, if the file cannot be read, is not a
    /// regular file, has more than 1 GiB (also after decompression), or has invalid content.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = input::read(path, LONGEST).map_err(|cause| {
            Error::system(
                format!("open {}", path.display()),
                cause,
                "check the path and that you may read the file",
            )
        })?;
        if bytes.starts_with(&GZIP) {
            return parse(MultiGzDecoder::new(&*bytes), path);
        }
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
            let what = format!("{} is not a gzip file", path.display());
            return Err(Error::usage(
                what,
                "download the file again; if it is text, give it a name without .gz",
            ));
        }
        parse(&*bytes, path)
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns true if there are no images; never after [`read`](Self::read).
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns all pixels, [`PIXELS`] an image, row by row from the top left, from 0.0 (white) to 1.0 (black).
    pub fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    /// Returns the label of each image, from 0 to 9.
    pub fn labels(&self) -> &[usize] {
        &self.labels
    }

    /// Returns the images to learn from and those to judge the result by, which are every fifth, in the order of the
    /// file. The same on every rank.
    pub fn split(&self) -> [Self; 2] {
        let (held_out, train): (Vec<usize>, Vec<usize>) =
            (0..self.len()).partition(|index| index % HELD_OUT_EVERY == 0);
        [self.select(&train), self.select(&held_out)]
    }

    /// Returns a hash of all pixels and labels.
    pub fn digest(&self) -> u64 {
        let pixels = self.pixels.iter().flat_map(|pixel| pixel.to_bits().to_le_bytes());
        hash::of_bytes(hash::START, pixels.chain(self.labels.iter().map(|label| *label as u8)))
    }

    /// Returns the images of these numbers, in that order.
    pub(super) fn select(&self, indices: &[usize]) -> Images {
        let image = |&index: &usize| &self.pixels[index * PIXELS..][..PIXELS];
        Images {
            pixels: indices.iter().flat_map(image).copied().collect(),
            labels: indices.iter().map(|&index| self.labels[index]).collect(),
        }
    }
}

/// Reads all lines; `path` is for the errors.
fn parse(source: impl io::Read, path: &Path) -> Result<Images> {
    let mut digits = Images { pixels: Vec::new(), labels: Vec::new() };
    let mut source = BufReader::new(source.take(LONGEST + 1));
    for line in 1.. {
        let mut text = String::new();
        let read = source.read_line(&mut text);
        if source.get_ref().limit() == 0 {
            let what = format!("{} decompresses to more than {LONGEST} bytes", path.display());
            return Err(Error::usage(what, "this is the limit; check that it is the correct file"));
        }
        let damaged = |cause| {
            let what = format!("read {}:{line}", path.display());
            Error::system(what, cause, "the file is incomplete or damaged: download it again")
        };
        if read.map_err(damaged)? == 0 {
            break;
        }
        if !text.trim().is_empty() {
            digits.push(&CsvLine { text: &text, path, line })?;
        }
    }
    if digits.len() < 2 {
        let what = format!("{} has {} rows", path.display(), digits.len());
        return Err(Error::usage(what, "use at least two, one to train and one to evaluate"));
    }
    Ok(digits)
}

/// A line, and where it stands.
struct CsvLine<'a> {
    text: &'a str,
    path: &'a Path,
    line: usize,
}

impl Images {
    fn push(&mut self, row: &CsvLine<'_>) -> Result<()> {
        let columns: Vec<&str> = row.text.split(',').map(str::trim).collect();
        if columns.len() != PIXELS + 1 {
            let what = format!("{}:{}: {} columns", row.path.display(), row.line, columns.len());
            let remedy = format!("write {}: 64 pixels and the label, separated by commas", PIXELS + 1);
            return Err(Error::usage(what, remedy));
        }
        let (pixels, label) = columns.split_at(PIXELS);
        for (pixel, column) in pixels.iter().zip(1..) {
            let value =
                row.value(pixel, column, "a number from 0 to 16", |value| (0.0..=INK).contains(&value))?;
            self.pixels.push(value / INK);
        }
        let is_digit = |value: f32| value.fract() == 0.0 && (0.0..CLASSES as f32).contains(&value);
        self.labels.push(row.value(label[0], PIXELS + 1, "a label from 0 to 9", is_digit)? as usize);
        Ok(())
    }
}

impl CsvLine<'_> {
    /// Returns the number in a column, if it `fits` there.
    fn value(
        &self,
        text: &str,
        column: usize,
        expected: &'static str,
        fits: impl Fn(f32) -> bool,
    ) -> Result<f32> {
        let CsvLine { path, line, .. } = *self;
        let refused = || {
            let shown: String = text.chars().take(SHOWN).collect();
            let what =
                format!("{}:{line}: column {column} is {shown:?} instead of {expected}", path.display());
            Error::usage(what, "correct the line, or remove it if it is a header")
        };
        text.parse().ok().filter(|&value| fits(value)).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    /// Parses a line of 64 equal pixels and a label.
    fn row(pixel: &str, label: &str) -> String {
        format!("{}{label}\n", format!("{pixel},").repeat(PIXELS))
    }

    fn error(text: &str) -> Error {
        parse(text.as_bytes(), Path::new("mine.csv")).unwrap_err()
    }

    fn gz(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_embedded_images_are_the_published_ones() {
        let digits = Images::embedded().unwrap();
        assert_eq!(digits.len(), 1797);
        assert_eq!(digits.pixels().len(), 1797 * PIXELS);
        assert!(digits.pixels().iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert_eq!(digits.labels()[..12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        assert_eq!(digits.pixels()[..8], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|pixel| pixel / 16.0));
        let per_label = |label| digits.labels().iter().filter(|&&found| found == label).count();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(per_label),
            [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        );
    }

    #[test]
    fn every_fifth_image_is_held_out() {
        let digits = Images::embedded().unwrap();
        let [train, held_out] = digits.split();
        assert_eq!((train.len(), held_out.len()), (1437, 360));
        let mut at = [0, 0];
        for index in 0..digits.len() {
            let (part, place) = if index % 5 == 0 { (&held_out, &mut at[1]) } else { (&train, &mut at[0]) };
            assert_eq!(part.select(&[*place]), digits.select(&[index]));
            *place += 1;
        }
        assert_ne!(train.digest(), held_out.digest());
    }

    #[test]
    fn decimal_points_line_ends_and_blank_lines_do_not_matter() {
        let digits = parse(
            (row(" 4.0", "7.0") + "\r\n\n" + &row("4", "7").replace('\n', "\r\n")).as_bytes(),
            Path::new(""),
        );
        assert_eq!(digits.unwrap(), Images { pixels: vec![0.25; 2 * PIXELS], labels: vec![7, 7] });
    }

    #[test]
    fn bad_lines_are_named_with_a_remedy() {
        let good = row("1", "1");
        let cases = [
            (good.clone() + "1,2,3\n", "mine.csv:2: 3 columns; write 65: 64 pixels"),
            (good.clone() + &good.replace('\n', ",0\n"), "mine.csv:2: 66 columns; write 65"),
            (
                good.clone() + &row("x", "1"),
                "mine.csv:2: column 1 is \"x\" instead of a number from 0 to 16; correct",
            ),
            (row("17", "1"), "mine.csv:1: column 1 is \"17\""),
            (row("nan", "1"), "mine.csv:1: column 1 is \"nan\""),
            (
                good.clone() + &row("2", "10"),
                "mine.csv:2: column 65 is \"10\" instead of a label from 0 to 9",
            ),
            (row("2", "-1"), "mine.csv:1: column 65 is \"-1\""),
            (row("2", "1.5"), "mine.csv:1: column 65 is \"1.5\""),
            (row("2", ""), "mine.csv:1: column 65 is \"\""),
            (String::new(), "mine.csv has 0 rows; use at least two"),
            ("\n\n".into(), "mine.csv has 0 rows"),
            (good.clone(), "mine.csv has 1 rows"),
        ];
        for (text, message) in cases {
            let error = error(&text).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn files_are_read_by_the_end_of_their_name() {
        let folder = std::env::temp_dir().join(format!("hexagram-digits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = row("8", "5").repeat(300);
        let whole = gz(&text);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.join(name), bytes).unwrap();
            Images::read(folder.join(name))
        };
        let plain = write("digits.csv", text.as_bytes()).unwrap();
        assert_eq!(plain.len(), 300);
        assert_eq!(write("digits.csv.GZ", &whole).unwrap(), plain);
        assert_eq!(write("two.csv.gz", &[whole.clone(), whole.clone()].concat()).unwrap().len(), 600);

        assert_eq!(write("unnamed.csv", &whole).unwrap(), plain);

        let messages = [
            (write("cut.csv.gz", &whole[..whole.len() - 9]), "incomplete or damaged: download it again"),
            (write("empty.csv.gz", b""), "is not a gzip file"),
            (write("wrong.csv.gz", text.as_bytes()), "is not a gzip file"),
        ];
        for (damaged, what) in messages {
            let message = damaged.unwrap_err().to_string();
            assert!(message.contains(what), "{message}");
            assert!(message.contains(&folder.display().to_string()), "{message}");
        }
        for endless in [Path::new("/dev/zero"), &folder] {
            let message = Images::read(endless).unwrap_err().to_string();
            assert!(message.starts_with(&format!("cannot open {}: it is a", endless.display())), "{message}");
        }
        let absent = Images::read(folder.join("absent.csv")).unwrap_err().to_string();
        assert!(absent.contains("absent.csv") && absent.contains("check the path"), "{absent}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
