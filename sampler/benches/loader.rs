//! How fast the loader is, for `bench/loader`: an epoch of 50 000 shuffled samples of 3 × 32 × 32 f32 with labels, in
//! batches of 64. Reads numbers of workers, one a line, and answers each with samples/s.

use hexagram_sampler::dataset::{Cause, Items, Rows, Zip};
use hexagram_sampler::loader::{Array, DataLoader, LoaderOptions, SampleGenerator};
use std::io::Write;
use std::time::Instant;

const SAMPLES: usize = 50_000;
const SHAPE: [usize; 4] = [SAMPLES, 3, 32, 32];

fn main() -> Result<(), Cause> {
    let mut generator = SampleGenerator::new(0, 0, 0);
    let pixels = (0..SHAPE.iter().product()).map(|_| generator.next_f64() as f32).collect();
    let images = Rows::new(Array::new(SHAPE, pixels)?);
    let dataset = Zip::new(images, Items((0..SAMPLES as i64).collect()))?;
    for workers in std::io::stdin().lines() {
        let options = LoaderOptions {
            batch_size: Some(64),
            shuffle: true,
            workers: workers?.trim().parse()?,
            ..LoaderOptions::default()
        };
        // From the start of the threads to the last batch, like PyTorch's measurement.
        let begun = Instant::now();
        let mut count = 0;
        for batch in DataLoader::new(dataset.clone(), options)?.iter() {
            let (_, labels) = batch?;
            count += labels.len();
        }
        println!("{:.0}", count as f64 / begun.elapsed().as_secs_f64());
        std::io::stdout().flush()?;
    }
    Ok(())
}
