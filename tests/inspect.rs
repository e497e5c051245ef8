//! `kvshare-cli inspect` says what descriptors are and what lies in the cache that they hold.

use std::os::fd::AsRawFd as _;

use kvshare::header::Params;
use kvshare::layout::TensorType;
use kvshare_tests::eyes::{Cache, element, run, run_with};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn tensor<'a>(report: &'a Value, name: &str) -> &'a Value {
    let tensors = report["layout"]["tensors"].as_array().unwrap();
    tensors.iter().find(|tensor| tensor["name"] == name).unwrap()
}

fn findings(report: &Value) -> Vec<(&str, &str, &str)> {
    let all = report["findings"].as_array().unwrap().iter();
    all.map(|found| {
        (found["kind"].as_str().unwrap(), found["about"].as_str().unwrap(), found["message"].as_str().unwrap())
    })
    .collect()
}

#[test]
fn a_sound_cache_is_described_and_nothing_is_changed() {
    let cache = Cache::small(17);
    let before = cache.bytes();
    let ended = cache.run(PROGRAM, &["inspect", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    let descriptor = &report["descriptors"][0];
    let size = cache.header.regions[0].size;
    for (field, expected) in [
        ("number", json!(3)),
        ("kind", json!("memfd")),
        ("name", json!("kvshare:cache_k_l0..")),
        ("size", json!(size)),
        ("access", json!("read-write")),
        ("seals", json!({"shrink": true, "grow": true, "seal": true, "write": false, "future_write": false})),
        ("close_on_exec", json!(false)),
        ("page_bytes", json!(rustix::param::page_size())),
        ("allocated_bytes", json!(size)),
        ("cpu_may_write", json!(true)),
        ("why_not_write", Value::Null),
    ] {
        assert_eq!(descriptor[field], expected, "{field}");
    }
    assert_eq!(report["layout"]["digest"], "right");
    let k = tensor(&report, "cache_k_l1");
    assert_eq!(k["streams"][0]["ranges"], json!([[0, 17]]));
    assert_eq!(k["streams"][0]["min"], element(1, 0, 0));
    assert_eq!(k["streams"][0]["max"], element(1, 16, 63));
    assert_eq!(tensor(&report, "cache_v_l0")["streams"][0]["mean"], -(1.0 + 1.0 + 31.5 / 64.0));
    assert_eq!(findings(&report), []);
    assert_eq!(cache.bytes(), before);
}

#[test]
fn whoever_else_has_the_memory_is_named() {
    let cache = Cache::small(1);
    let _mapped = cache.mapped();
    let report = cache.run(PROGRAM, &["inspect", "--json"]).json();
    let holders = report["descriptors"][0]["also_open_in"].as_array().unwrap();
    let us = holders.iter().find(|holder| holder["pid"] == std::process::id()).unwrap();
    assert_eq!(us["mapped"], true);
    assert!(us["descriptors"].as_array().unwrap().contains(&json!(cache.descriptors[0].as_raw_fd())), "{us}");
}

#[test]
fn descriptors_are_taken_from_another_process() {
    let cache = Cache::small(5);
    let (pid, number) = (std::process::id().to_string(), cache.descriptors[0].as_raw_fd().to_string());
    let header = cache.header_path();
    let arguments = ["inspect", "--json", "--pid", &pid, "--fds", &number, "--layout", header.to_str().unwrap()];
    let ended = run(PROGRAM, &arguments, &[]);
    if ended.stderr.is_empty() && ended.code == Some(0) {
        let report = ended.json();
        assert_eq!(report["descriptors"][0]["name"], "kvshare:cache_k_l0..");
        assert_eq!(report["descriptors"][0]["close_on_exec"], true, "ours closes on exec");
        assert_eq!(tensor(&report, "cache_k_l0")["streams"][0]["written"], 5);
    } else {
        // Where tracing is restricted, it says so.
        assert!(format!("{ended:?}").contains("right to trace"), "{ended:?}");
    }
}

#[test]
fn odd_rows_gaps_and_overwritten_padding_are_found() {
    let cache = Cache::small(20);
    let mut mapped = cache.mapped();
    mapped.fill_padding().unwrap();
    let mut row = vec![0.5; 64];
    row[9] = f32::NAN;
    mapped.k_mut(0).unwrap().write_f32(7, &row).unwrap();
    mapped.k_mut(1).unwrap().write_f32(8, &[f32::INFINITY; 64]).unwrap();
    row[9] = 30_000.0;
    mapped.v_mut(0).unwrap().write_f32(11, &row).unwrap();
    mapped.v_mut(0).unwrap().write_f32(12, &[0.25; 64]).unwrap();
    mapped.v_mut(1).unwrap().write_f32(3, &[0.0; 64]).unwrap();
    mapped
        .v_mut(1)
        .unwrap()
        .write_f32(20, &row[..9].iter().chain(&row[10..]).chain(&[0.75]).copied().collect::<Vec<_>>())
        .unwrap();
    drop(mapped);
    let end = cache.header.tensors[2].end();
    rustix::io::pwrite(&cache.descriptors[0], &[9], end + 5).unwrap();

    let ended = cache.run(PROGRAM, &["inspect", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report = ended.json();
    let expected = [
        ("odd_row", "cache_k_l0", "row 7 is odd: not a number, NaN at channel 9"),
        ("odd_row", "cache_v_l0", "row 11 is odd: huge, 30000 at channel 9 (the first of 2 odd rows)"),
        ("odd_row", "cache_k_l1", "row 8 is odd: infinite, inf at channel 0"),
        ("padding", "cache_k_l1", "byte 5 behind its end was overwritten: whoever filled it writes past its rows"),
        ("gap", "cache_v_l1", "row 3 not written, though row 20 is"),
        ("uneven", "cache_v_l1", "its rows end before position 21, those of most others before 20"),
    ];
    assert_eq!(findings(&report), expected);
    assert_eq!(tensor(&report, "cache_k_l0")["padding"]["state"], "intact");
    assert_eq!(tensor(&report, "cache_k_l1")["padding"], json!({"state": "damaged", "offset": 5}));

    let text = cache.run(PROGRAM, &["inspect"]);
    assert_eq!(text.code, Some(1));
    for (_, about, message) in expected {
        assert!(text.text().contains(&format!("{about}: {message}")), "{}", text.text());
    }
}

#[test]
fn rows_are_found_wherever_and_however_they_lie() {
    let f16 = Params::plain(96, TensorType::F16);
    let transposed = Params { v_trans: true, flash_attn: false, ..f16.clone() };
    let rotated = Params { n_rot_k: 64, n_rot_v: 64, ..Params::plain(96, TensorType::Q8_0) };
    let mixed = Params { type_k: TensorType::Q8_0, n_rot_k: 64, ..transposed.clone() };
    for params in [f16.clone(), transposed, rotated, mixed, Params { n_stream: 3, ..f16 }] {
        let cache = Cache::new(3, 128, 96, params.clone());
        cache.fill(21);
        let report = cache.run(PROGRAM, &["inspect", "--json"]).json();
        assert_eq!(findings(&report), [], "{params:?}");
        for name in ["cache_k_l2", "cache_v_l2"] {
            let streams = tensor(&report, name)["streams"].as_array().unwrap();
            assert_eq!(streams.len(), 1);
            assert_eq!(streams[0]["ranges"], json!([[0, 21]]), "{name} {params:?}");
            let sign = if name == "cache_k_l2" { 1.0 } else { -1.0 };
            let mean = streams[0]["mean"].as_f64().unwrap();
            let expected = sign * (3.0 + 10.0 / 8.0 + 63.5 / 64.0);
            assert!((mean - expected).abs() < 0.01, "{name} {params:?}: {mean}, not {expected}");
        }
    }
}

#[test]
fn values_are_printed_as_text_as_json_and_as_bytes() {
    let cache = Cache::new(4, 64, 100, Params { v_trans: true, ..Params::plain(100, TensorType::F16) });
    cache.fill(20);
    for (name, sign) in [("cache_k_l3", 1.0), ("cache_v_l3", -1.0)] {
        let cell = ["inspect", "--tensor", name, "--row", "17", "--count", "2"];
        let json = cache.run(PROGRAM, &[&cell[..], &["--json"]].concat()).json();
        assert_eq!(json["rows"][1]["position"], 18);
        for channel in 0..64 {
            assert_eq!(json["rows"][1]["values"][channel], sign * element(3, 18, channel as u64));
        }
        let raw = cache.run(PROGRAM, &[&cell[..], &["--raw"]].concat()).stdout;
        assert_eq!(raw.len(), 2 * 64 * 2);
        let first = half_from(&raw[..2]);
        assert_eq!(first, sign * element(3, 17, 0));
        let text = cache.run(PROGRAM, &cell);
        assert_eq!(text.code, Some(0));
        assert!(text.text().contains("row 17\n     0"), "{}", text.text());
        assert!(text.text().contains(&format!("{}", sign * 6.125)), "{}", text.text());
    }
}

/// An f16 that is a small multiple of 2^-6, from its bits.
fn half_from(bytes: &[u8]) -> f32 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    let (sign, exponent) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, i32::from(bits >> 10 & 31) - 15);
    sign * 2.0_f32.powi(exponent) * (1.0 + f32::from(bits & 1023) / 1024.0)
}

#[test]
fn the_map_shows_layers_and_positions() {
    let cache = Cache::small(3);
    let text = cache.run(PROGRAM, &["inspect"]);
    assert_eq!(text.code, Some(0));
    assert!(!text.text().contains('\u{1b}'), "a pipe gets no colours");
    let map = text.text().split("layers down").nth(1).unwrap();
    snapbox::assert_data_eq!(
        map,
        snapbox::str![[r#"
, positions 0 to 3 of 100 across, each:

layer  K     V
    0  ▁▂▃·  ▁▂▃·
    1  ▇▇█·  ▇▇█·

K ▁ 1.5198 to █ 2.7573   V ▁ 1.5198 to █ 2.7573   · not written   ░ some written   ! odd

Nothing is wrong with the descriptors, the header or the rows.

"#]]
    );
}

#[test]
fn colours_come_where_they_are_wanted() {
    let cache = Cache::small(3);
    let header = cache.header_path();
    let arguments = ["inspect", "--fds", "3", "--layout", header.to_str().unwrap()];
    let map =
        |variables: &[(&str, &str)]| run_with(variables, PROGRAM, &arguments, &cache.borrowed()).text().to_owned();
    assert!(map(&[("CLICOLOR_FORCE", "1")]).contains("\u{1b}[38;5;"));
    assert!(!map(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\u{1b}'));
}

#[test]
fn the_cache_is_drawn_into_a_file() {
    let cache = Cache::small(30);
    let draw = |name: &str| {
        let path = cache.path(name);
        (cache.run(PROGRAM, &["inspect", "--plot", path.to_str().unwrap()]), std::fs::read(path).unwrap_or_default())
    };
    let (ended, svg) = draw("cache.svg");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let svg = String::from_utf8(svg).unwrap();
    for words in ["tiny: what is written", "K (keys)", "V (values)", "position", "layer", "not written"] {
        assert!(svg.contains(words), "{words}");
    }
    let (ended, png) = draw("cache.png");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    let (ended, _) = draw("cache.jpg");
    assert_eq!(ended.code, Some(2));
    assert!(ended.stdout.is_empty(), "it is known before anything is looked at");
    assert!(ended.stderr.contains("must end in .svg or .png"), "{}", ended.stderr);
    let empty = Cache::small(0);
    let ended = empty.run(PROGRAM, &["inspect", "--plot", empty.path("none.svg").to_str().unwrap()]);
    assert!(ended.stderr.contains("no row was written"), "{}", ended.stderr);
}

#[test]
fn the_picture_says_what_is_wrong_and_has_every_stream() {
    let cache = Cache::new(2, 64, 2000, Params { n_stream: 2, ..Params::plain(2000, TensorType::F16) });
    cache.fill(1900);
    let plane = cache.mapped().layers()[0].k;
    for stream in [0, 1] {
        let (offset, bytes) = plane.rows(stream, 0, 1).unwrap();
        let mut row = vec![0; bytes as usize];
        rustix::io::pread(&cache.descriptors[0], &mut row, offset).unwrap();
        row[1] = 0x7c;
        let (offset, _) = plane.rows(stream, 1500, 1).unwrap();
        rustix::io::pwrite(&cache.descriptors[0], if stream == 0 { &row } else { &[9; 128] }, offset).unwrap();
    }
    let path = cache.path("cache.svg");
    let ended = cache.run(PROGRAM, &["inspect", "--plot", path.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let svg = std::fs::read_to_string(path).unwrap();
    for words in ["cache_k_l0 stream 0: row 1500 is odd", "stream 0: positions 0 to", "stream 1: positions 0 to", "RMS"]
    {
        assert!(svg.contains(words), "{words}");
    }
    // One position of a column of seven, yet as large as an eye needs.
    let is_odd = |line: &&str| line.contains("<rect") && line.contains("#C8141E");
    let width = |line: &str| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse::<u32>().unwrap();
    let odd: Vec<u32> = svg.lines().filter(is_odd).map(width).collect();
    assert!(odd.len() > 1 && odd.iter().all(|width| *width >= 9), "{odd:?}");
}

#[test]
fn the_picture_leaves_out_what_is_wrong_with_descriptors() {
    let cache = Cache::small(3);
    let file = cache.path("region.bin");
    std::fs::write(&file, &cache.bytes()[0]).unwrap();
    // Not sealed: the one finding, and none of the cache's rows.
    let unsealed = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let (layout, path) = (cache.header_path(), cache.path("cache.svg"));
    let [layout, plot] = [&layout, &path].map(|path| path.to_str().unwrap());
    let arguments = ["inspect", "--fds", "3", "--layout", layout, "--plot", plot];
    let ended = run(PROGRAM, &arguments, &[std::os::fd::AsFd::as_fd(&unsealed)]);
    assert!(ended.code == Some(1) && ended.text().contains("  descriptor 3: "), "{ended:?}");
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.contains("RMS") && !svg.contains("descriptor 3"), "{svg}");
}

/// A process that holds descriptors and does nothing.
struct Idle(std::process::Child);

impl Idle {
    /// `descriptors` become its standard input and error: two places are enough here.
    fn with(input: std::os::fd::OwnedFd, error: std::os::fd::OwnedFd) -> Self {
        let mut sleep = std::process::Command::new("sleep");
        Self(sleep.arg("600").stdin(input).stdout(std::process::Stdio::null()).stderr(error).spawn().unwrap())
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn all_memory_of_a_process_is_taken_once_and_what_is_no_part_of_the_cache_is_said_to_be() {
    let (cache, other) = (Cache::small(5), Cache::small(3));
    let header = cache.header_path();
    let owned = |cache: &Cache| cache.descriptors[0].try_clone().unwrap();
    let commands: [&[&str]; 2] = [&["inspect"], &["verify", "--against-fds", "3"]];
    let look = |idle: &Idle, command: &[&str]| {
        let pid = idle.0.id().to_string();
        let arguments = [command, &["--json", "--pid", &pid, "--layout", header.to_str().unwrap()]].concat();
        run(PROGRAM, &arguments, &cache.borrowed())
    };
    let twice = Idle::with(owned(&cache), owned(&cache));
    let mixed = Idle::with(owned(&cache), owned(&other));
    if look(&twice, commands[0]).stdout.is_empty() {
        // Where tracing is restricted, it says so.
        assert!(look(&twice, commands[0]).stderr.contains("right to trace"));
        return;
    }
    for command in commands {
        let ended = look(&twice, command);
        assert_eq!(ended.code, Some(0), "{command:?}: {ended:?}");
    }
    let report = look(&twice, commands[0]).json();
    assert_eq!(report["descriptors"].as_array().unwrap().len(), 1, "{report}");
    let report = look(&mixed, commands[0]).json();
    assert!(findings(&report)[0].2.ends_with("name the cache's with --fds"), "{report}");
}
