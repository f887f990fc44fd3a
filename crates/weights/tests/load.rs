//! Checkpoints as other programs write them load, in every layout.

use calla_model::network::{CheckpointParts, Mixer};
use calla_model::{AffineFormat, Matrix, MatrixData, Network};
use calla_weights::{Checkpoint, Layout, NormConvention, Placement};
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn views_lie_in_files_that_stay_mapped() {
    let checkpoint = Checkpoint::open(workspace().join("demo")).unwrap();
    let network = checkpoint.load().unwrap();
    let files = checkpoint.mapped_files();
    let MatrixData::Affine { packed, .. } = network.layers[1].moe.gate.data() else { panic!() };
    let start = files[0].offset_of(packed).unwrap();
    let pages = files[0].pages(start..start + packed.len() as u64).unwrap();
    assert!(pages.as_ptr().addr().is_multiple_of(pages.page_bytes() as usize));
    let expected = packed.to_vec();
    drop((network, checkpoint, files));
    let at = (start - pages.start()) as usize;
    assert_eq!(&pages.file_bytes()[at..][..expected.len()], &expected[..]);
}

#[test]
fn the_demo_checkpoint_loads() {
    let checkpoint = Checkpoint::open(workspace().join("demo")).unwrap();
    assert_eq!(checkpoint.shape(), &calla_model::Shape::demo());
    let (network, report) = checkpoint.load_with_report(Placement::Aligned).unwrap();
    assert_eq!(report.layout, Layout::Mlx);
    assert_eq!(report.mtp_norms, Some(NormConvention::Full));
    // Its header has an odd length (MLX does not pad it), so every matrix lies at an odd address.
    assert!(report.repacked_bytes > report.text_bytes * 9 / 10, "{report:?}");
    assert_eq!(report.warnings, [""; 0]);
    let aligned = |network: &Network<CheckpointParts>| {
        network
            .layers
            .iter()
            .all(|l| l.moe.gate.is_aligned() && l.moe.down_proj.iter().all(Matrix::is_aligned))
    };
    assert!(aligned(&network));
    let (in_place, report) = checkpoint.load_with_report(Placement::AsStored).unwrap();
    assert!(!aligned(&in_place));
    assert_eq!((report.repacked_bytes, report.repacked_tensors), (0, 0));
    let row = |network: &Network<CheckpointParts>| {
        let mut row = vec![0.0; 256];
        network.layers[5].moe.up_proj.get(31).read_row(63, &mut row);
        row
    };
    assert_eq!(row(&network), row(&in_place));
    assert_eq!(network.layers.len(), 8);
    assert!(network.mtp.is_some());
    let gate = network.layers[0].moe.gate.data();
    assert!(matches!(gate, MatrixData::Affine { format: AffineFormat::Q8_64, .. }));
    let up = &network.layers[3].moe.up_proj;
    assert_eq!((up.count(), up.rows(), up.cols()), (32, 64, 256));
    let Mixer::DeltaNet(delta) = &network.layers[0].mixer else { panic!("layer 0 is DeltaNet") };
    assert_eq!(delta.conv1d.len(), 1024 * 4);
}

#[test]
fn a_checkpoint_by_another_converter_loads() {
    let dir = workspace().join("../shared/tiny");
    if !dir.exists() {
        println!("skipped: {} is not there", dir.display());
        return;
    }
    let (network, report) =
        Checkpoint::open(dir).unwrap().load_with_report(Placement::Aligned).unwrap();
    assert_eq!(report.layout, Layout::Mlx);
    assert!(network.mtp.is_none());
}
