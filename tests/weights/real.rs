//! A real model, if `MOTET_MODEL` names its file or folder.

use std::path::PathBuf;
use std::time::Instant;

use motet::model::weights::ModelFiles;

#[test]
fn a_real_model_is_read_whole() {
    let Some(path) = std::env::var_os("MOTET_MODEL").map(PathBuf::from) else {
        return;
    };
    let started = Instant::now();
    let files = ModelFiles::open(&path).expect("MOTET_MODEL names a model");
    let opened = started.elapsed();
    let mut elements = 0;
    for (layer, role) in files.tensors() {
        let tensor = files
            .tensor(layer, role)
            .expect("the tensor was checked when the files were opened");
        let values = tensor.to_f32();
        elements += values.len();
        let largest = values
            .iter()
            .fold(0.0, |most: f32, value| most.max(value.abs()));
        assert!(
            values.iter().all(|value| value.is_finite()),
            "{layer:?} {role:?}"
        );
        // Gemma 3 270M has norms up to 1,657.
        assert!(
            (1e-3..1e4).contains(&largest),
            "{layer:?} {role:?}: {largest}"
        );
    }
    println!("{:#?}", files.blueprint());
    println!(
        "{elements} weights; opened in {opened:?}, all in {:?}",
        started.elapsed()
    );
}
