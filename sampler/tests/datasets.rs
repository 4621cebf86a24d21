//! The built-in datasets, on small files, and their errors for invalid files.
use hexagram_sampler::dataset::{
    Cifar10, Csv, CsvOptions, Dataset, DatasetError, Fetch, Items, Lines, Mnist, Rows, Zip,
};
use hexagram_sampler::loader::{Array, DataLoader, LoaderOptions, Pool, WorkerInfo};
use std::path::{Path, PathBuf};

/// A temporary folder, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hexagram-datasets-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A sample, loaded outside of any loader; an error as text.
fn get<D: Dataset>(dataset: &D, index: usize) -> Result<D::Sample, String> {
    let worker = WorkerInfo { id: 0, workers: 1, epoch: 0, base_seed: 0 };
    dataset.get(index, &Fetch::new(&worker, &Pool::new(), index)).map_err(|error| error.to_string())
}

/// The error of a dataset that could not be opened.
fn refused<D>(opened: Result<D, DatasetError>) -> String {
    opened.err().unwrap().to_string()
}

fn idx(sizes: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

#[test]
fn mnist_gives_images_and_labels() {
    let folder = Folder::new("mnist");
    let pixels: Vec<u8> = (0..24).collect();
    folder.write("train-images-idx3-ubyte", idx(&[2, 3, 4], &pixels));
    folder.write("train-labels-idx1-ubyte", idx(&[2], &[7, 9]));
    let train = Mnist::open(&folder.0, true).unwrap();
    assert_eq!((train.len(), train.shape().to_string()), (2, "[3, 4]".into()));
    let (image, label) = get(&train, 1).unwrap();
    assert_eq!((image, label), (Array::new([3, 4], pixels[12..].to_vec()).unwrap(), 9));
    assert!(get(&train, 2).unwrap_err().contains("sample 2 does not exist among 2"));

    let options = LoaderOptions { batch_size: Some(2), workers: 1, ..Default::default() };
    let (images, labels) = DataLoader::new(train, options).unwrap().iter().next().unwrap().unwrap();
    assert_eq!((images.shape().to_string(), labels.as_slice()), ("[2, 3, 4]".into(), &[7, 9][..]));

    let missing = refused(Mnist::open(&folder.0, false));
    assert!(missing.contains("t10k-images-idx3-ubyte") && missing.contains("check the path"), "{missing}");
    folder.write("t10k-images-idx3-ubyte.gz", b"");
    let compressed = refused(Mnist::open(&folder.0, false));
    assert!(compressed.ends_with("the file is compressed; decompress it with gunzip"), "{compressed}");
    folder.write("t10k-images.idx3-ubyte", idx(&[1, 1, 1], &[5]));
    folder.write("t10k-labels.idx1-ubyte", idx(&[2], &[1, 2]));
    let unequal = refused(Mnist::open(&folder.0, false));
    assert!(unequal.contains("1 images, but 2 labels"), "{unequal}");
    folder.write("t10k-labels.idx1-ubyte", b"PK");
    assert!(refused(Mnist::open(&folder.0, false)).contains("not an IDX file"));
    let swapped =
        Mnist::pair(&folder.0.join("train-labels-idx1-ubyte"), &folder.0.join("train-images-idx3-ubyte"));
    assert!(refused(swapped).contains("shapes [2] and [2, 3, 4] are not images and labels"));
}

#[test]
fn cifar_gives_images_and_labels_of_all_files() {
    let folder = Folder::new("cifar");
    let record = |label: u8, pixel: u8| [&[label][..], &[pixel; 3072]].concat();
    for part in 1..=5 {
        folder.write(&format!("data_batch_{part}.bin"), [record(part, 10 * part), record(9, 1)].concat());
    }
    let train = Cifar10::open(&folder.0, true).unwrap();
    assert_eq!(train.len(), 10);
    for part in 1..=5u8 {
        let (image, label) = get(&train, 2 * (part as usize - 1)).unwrap();
        assert_eq!((label, image.shape().to_string()), (part, "[3, 32, 32]".into()));
        assert!(image.iter().all(|pixel| *pixel == 10 * part));
    }
    assert!(get(&train, 10).unwrap_err().contains("sample 10 does not exist among 10"));
    assert!(refused(Cifar10::open(&folder.0, false)).contains("test_batch.bin"));
    folder.write("test_batch.bin", [record(0, 0), record(10, 0)].concat());
    let test = Cifar10::open(&folder.0, false).unwrap();
    assert!(get(&test, 1).unwrap_err().contains("record 1 has the label 10 instead of 0 to 9"));
    for broken in [&b""[..], &[0; 3072]] {
        folder.write("test_batch.bin", broken);
        assert!(refused(Cifar10::open(&folder.0, false)).contains("not a multiple of the record size 3073"));
    }
}

#[test]
fn records_of_a_file_are_arrays() {
    let folder = Folder::new("records");
    let numbers: Vec<u8> = (0..12).flat_map(|number| (number as f32).to_ne_bytes()).collect();
    let path = folder.write("records.bin", [&[0; 8][..], &numbers].concat());
    let rows = Rows::<f32>::open(&path, 8, [2, 2]).unwrap();
    assert_eq!((Dataset::len(&rows), get(&rows, 2).unwrap().to_vec()), (3, vec![8.0, 9.0, 10.0, 11.0]));
    assert_eq!(Dataset::len(&Rows::<u8>::open(&path, 0, [7, 8]).unwrap()), 1);
    for (header, width) in [(0, 5), (60, 1), (57, 1), (8, 0)] {
        let error = refused(Rows::<f32>::open(&path, header, [width]));
        assert!(error.contains("correct the header or the shape"), "{error}");
    }
    let path = folder.write("odd.bin", [&[0; 3][..], &numbers].concat());
    assert!(refused(Rows::<f32>::open(&path, 3, [4])).contains("`Rows::<u8>`"));
    let empty = folder.write("empty.bin", b"");
    assert!(Rows::<f32>::open(&empty, 0, [4]).unwrap().is_empty());
    assert!(refused(Rows::<f32>::open(&empty, 4, [4])).contains("0 bytes"));
}

#[test]
fn rows_of_an_array_are_views() {
    let rows = Rows::new(Array::new([3, 2], vec![1, 2, 3, 4, 5, 6]).unwrap());
    assert_eq!((Dataset::len(&rows), get(&rows, 1).unwrap().to_vec()), (3, vec![3, 4]));
    assert!(get(&rows, 3).is_err());
    assert!(Rows::new(Array::new([], vec![1u8]).unwrap()).is_empty());
    let error = Zip::new(rows, Items(vec!["a"; 2])).err().unwrap().to_string();
    assert!(error.contains("3 samples cannot be paired with 2"), "{error}");
}

#[test]
fn lines_have_no_ends() {
    let folder = Folder::new("lines");
    let open = |text: &[u8]| Lines::open(folder.write("text", text)).unwrap();
    let all = |text: &[u8]| {
        let lines = open(text);
        let lengths: Vec<usize> = lines.lengths().collect();
        let lines: Vec<String> = (0..lines.len()).map(|index| get(&lines, index).unwrap()).collect();
        assert_eq!(lengths, lines.iter().map(String::len).collect::<Vec<_>>());
        lines
    };
    assert_eq!(all(b"one\r\n\ntwo\nthree"), ["one", "", "two", "three"]);
    assert_eq!(all("gr\u{fc}n\n".as_bytes()), ["gr\u{fc}n"]);
    assert_eq!(all(b"\n"), [""]);
    assert!(all(b"").is_empty());
    let error = get(&open(b"good\nb\xffd\n"), 1).unwrap_err();
    assert!(error.contains("text:2: the line is not UTF-8") && error.contains("iconv"), "{error}");
    assert!(get(&open(b"good\n"), 1).is_err());
}

fn csv(path: &Path, header: bool) -> Csv {
    Csv::open(path, CsvOptions { header, ..CsvOptions::default() }).unwrap()
}

#[test]
fn records_of_a_csv_file_are_text_or_numbers() {
    let folder = Folder::new("csv");
    let path = folder.write("table.csv", "name,\"a, b\"\r\n\"x\ny\",1\n\nz,-2.5\n");
    let table = csv(&path, true);
    assert_eq!((table.header(), table.columns(), table.len()), (&["name".into(), "a, b".into()][..], 2, 2));
    assert_eq!(get(&table, 0).unwrap(), ["x\ny", "1"]);
    assert_eq!(get(&table, 1).unwrap(), ["z", "-2.5"]);
    let error = get(&table.numbers::<f32>(), 1).unwrap_err();
    assert!(error.contains("table.csv:5: column 1 is \"z\", not a number"), "{error}");

    let path = folder.write("numbers.csv", "1, 2\n3,4\n5\n");
    let numbers = csv(&path, false).numbers::<i64>();
    assert_eq!(get(&numbers, 1).unwrap(), Array::new([2], vec![3, 4]).unwrap());
    let error = get(&numbers, 2).unwrap_err();
    assert!(error.contains("numbers.csv:3: 1 fields, and the first record has 2"), "{error}");
    assert!(get(&numbers, 3).is_err());

    let quotes = CsvOptions { header: false, delimiter: b'"' };
    let error = refused(Csv::open(&path, quotes));
    assert!(error.contains("the delimiter is a quote or a line end"), "{error}");
    let semicolons = CsvOptions { header: false, delimiter: b';' };
    let path = folder.write("semi.csv", "1,5;2\n");
    assert_eq!(get(&Csv::open(path, semicolons).unwrap(), 0).unwrap(), ["1,5", "2"]);
    assert!(csv(&folder.write("empty.csv", ""), true).is_empty());
    let open = folder.write("open.csv", "a,b\n1,\"2\n3,4\n");
    let error = refused(Csv::open(open, CsvOptions::default()));
    assert!(error.contains("open.csv:2: a quoted field does not end"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_no_regular_file_is_refused_not_taken_for_an_empty_one() {
    let folder = Folder::new("devices");
    let pipe = folder.0.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for path in [Path::new("/dev/zero"), &pipe] {
        let labels = Path::new("no-labels");
        for error in [
            refused(Lines::open(path)),
            refused(Csv::open(path, CsvOptions::default())),
            refused(Mnist::pair(path, labels)),
            refused(Cifar10::files([path.to_owned()])),
        ] {
            let expected = format!("cannot read {}: it is a pipe or a device", path.display());
            assert!(error.starts_with(&expected), "{error}");
        }
    }
    let error = refused(Lines::open(&folder.0));
    assert!(error.contains("it is a folder, not a file"), "{error}");
}
