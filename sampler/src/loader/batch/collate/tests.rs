use super::*;

fn pool() -> Pool {
    Pool::new()
}

#[test]
fn numbers_and_arrays_are_stacked() {
    let batch = Collate::collate(vec![1i64, 2, 3], &pool()).unwrap();
    assert_eq!(batch, Array::new([3], vec![1i64, 2, 3]).unwrap());
    let samples = (0..3).map(|at| Array::new([2, 2], vec![at as f32; 4]).unwrap()).collect();
    let batch = Array::collate(samples, &pool()).unwrap();
    assert_eq!(*batch.shape(), [3, 2, 2].into());
    assert_eq!(batch.as_slice(), [0., 0., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2.]);
}

#[test]
fn text_stays_text() {
    let batch = Collate::collate(vec!["a".to_owned(), "bc".to_owned()], &pool()).unwrap();
    assert_eq!(batch, ["a", "bc"]);
    assert_eq!(Collate::collate(vec![true, false], &pool()).unwrap(), [true, false]);
}

#[test]
fn tuples_sequences_and_maps_are_taken_apart() {
    let sample = |at: i64| {
        let map = BTreeMap::from([("x", at as f32), ("y", -at as f32)]);
        (at, vec![at, 10 * at], map)
    };
    let (numbers, rows, map) = Collate::collate(vec![sample(1), sample(2)], &pool()).unwrap();
    assert_eq!(numbers.as_slice(), [1, 2]);
    assert_eq!(rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>(), [[1, 2], [10, 20]]);
    assert_eq!(map["y"].as_slice(), [-1.0, -2.0]);
    let hashed = |at: u8| HashMap::<String, u8>::from([("k".into(), at)]);
    let batch = Collate::collate(vec![hashed(1), hashed(2)], &pool()).unwrap();
    assert_eq!(batch["k"].as_slice(), [1, 2]);
}

#[test]
fn unequal_shapes_are_told_with_their_place_and_part() {
    let image = |width: usize| Array::new([3, width], vec![0u8; 3 * width]).unwrap();
    let error = Collate::collate(vec![(image(4), 1u8), (image(4), 1), (image(5), 1)], &pool()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the sample at place 2 of the batch has shape [3, 5], but the first sample has [3, 4] (in its part .0); \
         make the samples alike, or use a collate function that pads them"
    );
    let nested = |width| BTreeMap::from([("image", vec![image(4), image(width)])]);
    let error = Collate::collate(vec![nested(4), nested(2)], &pool()).err().unwrap();
    assert_eq!((error.place, error.part.as_str()), (1, "[\"image\"][1]"));
}

#[test]
fn unequal_lengths_and_keys_are_told() {
    let error = Collate::collate(vec![vec![1u8, 2], vec![1]], &pool()).err().unwrap().to_string();
    assert!(error.contains("place 1 of the batch has length 1, but the first sample has 2"), "{error}");
    let of = |keys: &[&'static str]| keys.iter().map(|key| (*key, 1u8)).collect::<BTreeMap<_, _>>();
    let error = Collate::collate(vec![of(&["a", "b"]), of(&["a"])], &pool()).err().unwrap().to_string();
    assert!(error.contains("place 1 of the batch lacks the key \"b\" of the first sample"), "{error}");
    let error = Collate::collate(vec![of(&["a"]), of(&["a", "c"])], &pool()).err().unwrap().to_string();
    assert!(error.contains("has the additional key \"c\""), "{error}");
}

#[test]
fn eight_dimensions_leave_no_room_for_the_batch() {
    let sample = Array::new([1; 8], vec![1u8]).unwrap();
    let error = Array::collate(vec![sample], &pool()).err().unwrap().to_string();
    assert!(error.contains("too many dimensions to stack; flatten the samples"), "{error}");
}

#[test]
fn padding_fills_up_on_the_right() {
    let (rows, lengths) = padded(&[vec![1u8, 2, 3], vec![], vec![4]], 9, &pool());
    assert_eq!(*rows.shape(), [3, 3].into());
    assert_eq!(rows.as_slice(), [1, 2, 3, 9, 9, 9, 4, 9, 9]);
    assert_eq!(lengths.as_slice(), [3, 0, 1]);
    assert_eq!(*padded::<u8>(&[[0u8; 0]; 2], 0, &pool()).0.shape(), [2, 0].into());
}

#[test]
fn memory_of_batches_is_used_again() {
    let pool = pool();
    for _ in 0..100 {
        drop(Collate::collate(vec![(1.0f32, 2i64); 64], &pool).unwrap());
    }
    assert_eq!(pool.usage().allocated, 2);
}
