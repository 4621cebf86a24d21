//! Plans: every element once, one element type per bucket, and a small bucket first.

use super::*;

#[test]
fn plans_reverse_parameters_and_begin_with_a_small_bucket() {
    let plan = ModelPlan::new(parameters(6, 100), &options(400, 1000), Buckets::BySize);
    let members: Vec<Vec<usize>> = plan
        .buckets()
        .iter()
        .map(|bucket| bucket.members.iter().map(|(index, _)| *index).collect())
        .collect();
    assert_eq!(members, [vec![5], vec![4, 3, 2], vec![1, 0]]);
}

#[test]
fn plans_cover_every_element_once_and_never_mix_types() {
    let mixed: Vec<Parameter> = (0..50)
        .map(|index| parameter("p", [DType::F32, DType::BF16, DType::F64][index % 3], index * index))
        .collect();
    let plan = ModelPlan::new(mixed.clone(), &options(100, 4000), Buckets::BySize);
    let mut seen = vec![0; mixed.len()];
    for bucket in plan.buckets() {
        let mut end = 0;
        for (index, range) in &bucket.members {
            let in_bucket = if mixed[*index].dtype == DType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!((in_bucket, mixed[*index].len()), (bucket.dtype, range.len()));
            assert_eq!(range.start, end);
            end = range.end;
            seen[*index] += 1;
        }
        assert_eq!(end, bucket.len);
        let without_last = bucket.members.last().unwrap().1.start * bucket.dtype.size();
        assert!(without_last < 4000, "it ended with the parameter that filled it");
    }
    assert_eq!(seen, vec![1; mixed.len()]);
    let completed_by = |bucket: &super::super::plan::BucketPlan| bucket.members.last().unwrap().0;
    assert!(plan.buckets().is_sorted_by_key(|bucket| std::cmp::Reverse(completed_by(bucket))));
}
