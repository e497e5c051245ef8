//! Any bytes as a GGUF: its metadata as the library reads it, and the whole as the stand-ins' model does.
#![no_main]

use std::io::Cursor;

use fake_exporter::model::Model;
use kvshare::layout::{GgufMetadata, TensorType};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match GgufMetadata::read(bytes) {
        Ok(metadata) => {
            let _ = metadata.head_sizes();
            if let Ok(geometry) = metadata.geometry(256, TensorType::F16, TensorType::Q8_0) {
                let _ = geometry.layout();
            }
        }
        Err(error) => assert!(error.to_string().len() < 1024),
    }
    if let Err(error) = Model::read(Cursor::new(bytes)) {
        assert!(!error.to_string().is_empty());
    }
});
