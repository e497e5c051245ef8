//! Share and adopt: what was written is what is read, in place, and nothing else changes the slot.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use fake_exporter::checker::RowKey;
use kvshare::layout::Part;
use kvshare::map::{Access, Extent, MapOptions, MappedRegion};
use serde_json::{Value, json};

use super::handoff::share;
use super::server::{CHECKER, Server};

fn prompt(length: i32) -> Vec<i32> {
    (0..length).map(|index| index * 7 % 251).collect()
}

fn met(reply: &Value) -> (&Value, &Value) {
    (&reply["timings"]["cache_n"], &reply["timings"]["prompt_n"])
}

#[test]
fn a_prompt_is_prefilled_by_another_process_and_one_token_is_left_to_evaluate() {
    let kinds: [&[&str]; 5] = [
        &[],
        &["-fa", "off"],
        &["-ctk", "f32", "-ctv", "bf16"],
        &["--guard", "tensor", "--reserve", "touch"],
        &["--guard", "region"],
    ];
    for kind in kinds {
        let server = Server::checker(kind);
        let tokens = prompt(200);
        let cold = server.complete(&tokens);
        assert_eq!(met(&cold), (&json!(0), &json!(200)), "{kind:?}");

        let share = share(&server);
        share.provide(&tokens[..199]);
        let adopted = server.action("adopt", share.adopt_body(&tokens[..199]));
        assert_eq!(adopted, json!({"id_slot": 0, "n_adopted": 199}));
        let reply = server.complete(&tokens);
        assert_eq!(reply["content"], "every element of 200 positions in 2 layers is right", "{kind:?}");
        assert_eq!(met(&reply), (&json!(199), &json!(1)), "{kind:?}");
    }
}

#[test]
fn an_element_that_the_provider_got_wrong_is_named() {
    let server = Server::checker(&[]);
    let tokens = prompt(40);
    let share = share(&server);
    share.provide(&tokens[..39]);
    let key = RowKey { part: Part::V, layer: 1, position: 17, token: tokens[17] };
    let mut row = [0.0; 32];
    key.fill(&mut row);
    let right = row[5];
    row[5] = 99.5;
    share.map().v_mut(1).unwrap().write_f32(17, &row).unwrap();

    server.action("adopt", share.adopt_body(&tokens[..39]));
    let expected = format!("wrong: cache_v_l1, position 17 (token {}), channel 5: 99.5 instead of {right}", tokens[17]);
    assert_eq!(server.complete(&tokens)["content"], expected);
}

#[test]
fn a_refused_adopt_changes_nothing_and_leaks_nothing() {
    let server = Server::checker(&[]);
    let tokens = prompt(30);
    let share = share(&server);
    share.provide(&tokens[..29]);
    let id = &share.share_id;
    let too_many = vec![1; 256];
    let refused: [(&str, Value, &str); 10] = [
        ("0", json!({"tokens": [1]}), "needs \"share_id\""),
        ("0", json!({"tokens": [1], "share_id": 0}), "share_id 0 names no share"),
        ("0", json!({"tokens": [1], "share_id": 1}), "share_id 1 was not minted here"),
        ("0", json!({"tokens": [1], "share_id": "1"}), "share_id: invalid type: string"),
        ("0", json!({"share_id": id}), "\"tokens\" is required"),
        ("0", json!({"tokens": [], "share_id": id}), "\"tokens\" is empty"),
        ("0", json!({"tokens": too_many, "share_id": id}), "at most 255 can be adopted"),
        ("0", json!({"tokens": [1, 257], "share_id": id}), "token 1 is 257, which is outside the vocabulary of 257"),
        ("0", json!({"tokens": [-1], "share_id": id}), "token 0 is -1"),
        ("1", json!({"tokens": [1], "share_id": id}), "there is no slot 1"),
    ];
    for (slot, body, expected) in refused {
        let error = server.refused(&format!("/slots/{slot}?action=adopt"), body);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
        assert_eq!((&error["code"], &error["type"]), (&json!(400), &json!("invalid_request_error")));
    }

    server.action("adopt", share.adopt_body(&tokens[..29]));
    let used = server.refused("/slots/0?action=adopt", share.adopt_body(&tokens[..29]));
    assert!(used["message"].as_str().unwrap().contains("was adopted already"));
    assert_eq!(met(&server.complete(&tokens)), (&json!(29), &json!(1)));
    server.assert_no_descriptor_leaked();
}

#[test]
fn cells_of_a_provider_that_writes_past_a_tensor_are_not_adopted() {
    // 200 cells, so that no tensor fills its last page.
    let shape = ["--checker", "--layers", "2", "--k-width", "64", "--v-width", "32", "-c", "200"];
    let server = Server::start(&shape);
    let tokens = prompt(4);
    let careful = share(&server);
    careful.provide(&tokens[..3]);
    let careless = careful.map();
    let placed = careless.tensors().iter().find(|placed| placed.tensor.name() == "cache_v_l0").unwrap();
    let (region, end) = (&careful.header.regions[placed.region], placed.end());
    let extent = Extent { offset: region.offset, size: region.size };
    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    let mut raw = MappedRegion::map(&careful.descriptors[region.fd], extent, &[], &options).unwrap();
    raw.view_mut(end + 2, 2).unwrap().fill(0);

    let error = server.refused("/slots/0?action=adopt", careful.adopt_body(&tokens[..3]));
    assert_eq!((&error["code"], &error["type"]), (&json!(400), &json!("invalid_request_error")));
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("not adopted: byte 2 behind the end of tensor \"cache_v_l0\" was overwritten"),
        "{message}"
    );
    let reply = server.complete(&tokens);
    assert_eq!(met(&reply), (&json!(0), &json!(4)));
    server.assert_no_descriptor_leaked();
}

#[test]
fn an_expired_share_is_refused_and_the_next_request_answered() {
    let server = Server::checker(&["--share-lifetime", "0"]);
    let tokens = prompt(30);
    let share = share(&server);
    share.provide(&tokens[..29]);
    let error = server.refused("/slots/0?action=adopt", share.adopt_body(&tokens[..29]));
    assert!(error["message"].as_str().unwrap().contains("expired after 0 s"), "{error}");
    assert_eq!(met(&server.complete(&tokens)), (&json!(0), &json!(30)));
    server.assert_no_descriptor_leaked();
}

#[test]
fn a_new_share_replaces_the_one_before() {
    let server = Server::checker(&[]);
    let tokens = prompt(30);
    let first = share(&server);
    let second = share(&server);
    let error = server.refused("/slots/0?action=adopt", first.adopt_body(&tokens));
    assert!(error["message"].as_str().unwrap().contains("reclaimed since"), "{error}");
    // Whoever still writes the first share's cells does not reach the second's.
    second.provide(&tokens[..29]);
    first.provide(&prompt(40)[10..]);
    server.action("adopt", second.adopt_body(&tokens[..29]));
    assert_eq!(server.complete(&tokens)["content"], "every element of 30 positions in 2 layers is right");
}

#[test]
fn a_late_writer_does_not_reach_the_cells_of_the_next_request() {
    let server = Server::checker(&[]);
    let late = share(&server);
    let tokens = prompt(50);
    assert_eq!(met(&server.complete(&tokens)), (&json!(0), &json!(50)));
    late.provide(&[3; 200]);
    let again = server.complete(&tokens);
    assert_eq!(met(&again), (&json!(49), &json!(1)));
    assert_eq!(again["content"], "every element of 50 positions in 2 layers is right");
    let error = server.refused("/slots/0?action=adopt", late.adopt_body(&tokens));
    assert_eq!(error["code"], 400);
    server.assert_no_descriptor_leaked();
}

#[test]
fn a_socket_that_is_not_in_the_slot_directory_gets_nothing_and_the_slot_keeps_what_it_held() {
    let server = Server::checker(&[]);
    let elsewhere = tempfile::tempdir().unwrap();
    let _outside = UnixListener::bind(elsewhere.path().join("a.sock")).unwrap();
    symlink(elsewhere.path().join("a.sock"), server.directory().join("link.sock")).unwrap();
    symlink(elsewhere.path(), server.directory().join("directory")).unwrap();
    std::fs::write(server.directory().join("file"), "").unwrap();
    drop(UnixListener::bind(server.directory().join("dead.sock")).unwrap());
    let tokens = prompt(20);
    server.complete(&tokens);

    let inside = |name: &str| json!({"socket": server.directory().join(name)});
    let refused: [(Value, &str); 8] = [
        (json!({}), "\"socket\" is required"),
        (json!({"socket": 7}), "socket: "),
        (json!({"socket": elsewhere.path().join("a.sock")}), "not directly inside"),
        (inside("../a.sock"), "not directly inside"),
        (inside("link.sock"), "not directly inside"),
        (inside("directory/a.sock"), "not directly inside"),
        (inside("missing.sock"), "listens"),
        (inside("dead.sock"), "listens"),
    ];
    for (body, expected) in refused {
        let error = server.refused("/slots/0?action=share", body.clone());
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{body}: {message}");
        assert_eq!(error["code"], 400);
    }
    assert_eq!(server.refused("/slots/0?action=share", inside("file"))["code"], 400);
    assert_eq!(met(&server.complete(&tokens)), (&json!(19), &json!(1)));
    server.assert_no_descriptor_leaked();
}

#[test]
fn a_decoder_that_does_not_share_says_so() {
    let off = Server::checker(&["--sharing", "off"]);
    let unknown = Server::checker(&["--sharing", "unknown"]);
    for action in ["share", "adopt"] {
        let path = format!("/slots/0?action={action}");
        let error = off.refused(&path, json!({}));
        assert_eq!((&error["code"], &error["type"]), (&json!(501), &json!("not_supported_error")));
        let error = unknown.refused(&path, json!({"filename": "a.bin"}));
        assert_eq!(error, json!({"code": 400, "message": "Invalid action", "type": "invalid_request_error"}));
    }
}

#[test]
fn memory_is_described_as_what_it_is() {
    let server = Server::start(&[&CHECKER[..], &["-fa", "off", "-ctk", "f32"]].concat());
    let share = share(&server);
    let params = share.header.params.as_ref().unwrap();
    assert_eq!((params.n_ctx, params.v_trans, params.flash_attn), (256, true, false));
    assert_eq!((params.type_k.name(), params.type_v.name()), ("f32", "f16"));
    assert_eq!(share.header.model.as_ref().unwrap().name, "checker");
    let cache = share.map();
    assert_eq!((cache.layers().len(), cache.cells()), (2, 256));
}
