use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn data(pairs: &[(&str, &str)]) -> Attachments {
    Attachments::parse(&map(pairs), KeyForm::Data)
}

fn pointers(json: &str) -> Attachments {
    Attachments::parse(&map(&[(KEYS_ANNOTATION, json)]), KeyForm::Pointer)
}

fn keys(attachments: &Attachments) -> Vec<(&str, &str)> {
    attachments.keys.iter().map(|(key, lease)| (key.as_str(), lease.as_str())).collect()
}

/// The one problem, in words; nothing may be attached.
fn refused(attachments: &Attachments) -> String {
    assert_eq!(attachments.whole, None);
    assert!(attachments.keys.is_empty(), "attached: {:?}", attachments.keys);
    assert_eq!(attachments.problems.len(), 1, "{:?}", attachments.problems);
    attachments.problems[0].to_string()
}

fn data_key(key: &str) -> Key {
    Key::parse(key, KeyForm::Data).expect("a key of data")
}

#[test]
fn an_object_without_our_annotations_has_no_attachments() {
    let attachments = data(&[
        ("app", "web"),
        ("key.lessor.de/a", "x"),
        ("lessor.dev/note", "y"),
        ("lessor.devil/lease", "z"),
    ]);
    assert!(attachments.is_empty());
}

#[test]
fn the_lease_annotation_attaches_the_whole_object() {
    let attachments = data(&[("lessor.dev/lease", "session-42")]);
    assert_eq!(attachments.whole.as_ref().map(LeaseName::as_str), Some("session-42"));
    assert!(attachments.keys.is_empty() && attachments.problems.is_empty());
}

#[test]
fn how_an_object_is_deleted_is_understood_or_it_is_not_touched() {
    let with = |propagation| {
        data(&[("lessor.dev/lease", "a"), ("key.lessor.dev/k", "b"), (PROPAGATION_ANNOTATION, propagation)])
    };
    assert_eq!(data(&[("lessor.dev/lease", "a")]).propagation, Propagation::Background);
    assert_eq!(with("Foreground").propagation, Propagation::Foreground);
    assert_eq!(with("Orphan").propagation, Propagation::Orphan);
    assert!(with("Background").whole.is_some());
    for wrong in ["", "orphan", "Delete"] {
        assert!(refused(&with(wrong)).contains("\"Foreground\""), "{wrong}");
    }
}

#[test]
fn keys_of_one_object_go_with_leases_of_their_own() {
    let attachments = data(&[
        ("key.lessor.dev/a", "one"),
        ("key.lessor.dev/b.c_d-E", "two"),
        ("lessor.dev/keys", r#"{".dockerconfigjson": "three", "a": "one"}"#),
    ]);
    assert_eq!(keys(&attachments), [(".dockerconfigjson", "three"), ("a", "one"), ("b.c_d-E", "two")]);
    assert!(attachments.problems.is_empty());
}

#[test]
fn keys_and_whole_do_not_change_each_other() {
    let attachments = data(&[("key.lessor.dev/a", "one"), ("lessor.dev/lease", "two")]);
    assert_eq!(attachments.whole.as_ref().map(LeaseName::as_str), Some("two"));
    assert_eq!(keys(&attachments), [("a", "one")]);
}

#[test]
fn a_key_that_two_annotations_give_to_different_leases_is_void_and_others_are_not() {
    let attachments = data(&[("key.lessor.dev/a", "one"), ("lessor.dev/keys", r#"{"a":"two","b":"two"}"#)]);
    assert_eq!(keys(&attachments), [("b", "two")]);
    let message = attachments.problems[0].to_string();
    assert!(message.contains(r#"key "a" is attached to lease "one""#), "{message}");
    assert!(message.contains(r#"to lease "two""#), "{message}");
    assert_eq!(attachments.problems[0].reason(), "TwoLeases");
}

#[test]
fn a_key_whose_own_annotation_is_bad_is_not_attached_by_the_other_form() {
    let attachments =
        data(&[("key.lessor.dev/a", "Not A Lease"), ("lessor.dev/keys", r#"{"a":"two","b":"two"}"#)]);
    assert_eq!(keys(&attachments), [("b", "two")]);
    assert_eq!(attachments.problems.len(), 1);
}

#[test]
fn a_bad_lease_name_attaches_nothing_and_the_message_shows_a_good_one() {
    let long = "x".repeat(10 * 1024);
    let names =
        ["", " ", "a b", "a/b", "Upper", "-a", "a-", "a..b", ".", "ü", "a_b", "session-42 ", long.as_str()];
    for name in names {
        for annotation in ["lessor.dev/lease", "key.lessor.dev/a"] {
            let message = refused(&data(&[(annotation, name)]));
            assert!(message.contains(annotation) && message.contains("session-42"), "{message}");
            assert!(message.len() < 400, "{message}");
        }
    }
}

#[test]
fn lease_names_have_at_most_253_bytes() {
    assert!(LeaseName::parse(&"a".repeat(253)).is_ok());
    assert_eq!(LeaseName::parse(&"a".repeat(254)), Err(NameFault::TooLong(254)));
}

#[test]
fn a_long_value_is_cut_where_a_character_ends() {
    let message = refused(&data(&[("lessor.dev/lease", &"é".repeat(5000))]));
    assert!(message.contains("é…") && message.len() < 400, "{message}");
}

#[test]
fn what_is_wrong_fits_into_an_event_however_long_and_strange_it_is() {
    let strange = "\u{1}".repeat(10 * 1024);
    let json = serde_json::json!({ "k": [&strange], &strange: &strange }).to_string();
    let own_annotation = format!("{KEY_PREFIX}{strange}");
    for form in [KeyForm::Data, KeyForm::Pointer] {
        for json in [&json, &strange] {
            let annotations =
                [(LEASE_ANNOTATION, strange.as_str()), (&own_annotation, &strange), (KEYS_ANNOTATION, json)];
            let problems = Attachments::parse(&map(&annotations), form).problems;
            assert_eq!(problems.len(), 3);
            for problem in problems {
                assert!(problem.to_string().len() <= 1024, "{problem}");
            }
        }
    }
    let key = "k".repeat(253);
    let json = serde_json::json!({ &key: "a".repeat(253) }).to_string();
    let problems = data(&[(&format!("{KEY_PREFIX}{key}"), "one"), (KEYS_ANNOTATION, &json)]).problems;
    assert!(problems[0].to_string().len() <= 1024, "{}", problems[0]);
}

#[test]
fn only_configmaps_and_secrets_have_keys_of_data() {
    assert_eq!(KeyForm::of("", "ConfigMap"), KeyForm::Data);
    assert_eq!(KeyForm::of("", "Secret"), KeyForm::Data);
    assert_eq!(KeyForm::of("apps", "Deployment"), KeyForm::Pointer);
    assert_eq!(KeyForm::of("example.com", "Secret"), KeyForm::Pointer);
}

#[test]
fn a_key_that_no_configmap_can_have_is_refused() {
    for key in ["", "a b", "a/b", ".", "..", "..a", "ä", &"k".repeat(254)] {
        let message = refused(&data(&[(&format!("{KEY_PREFIX}{key}"), "one")]));
        assert!(message.contains("names no key"), "{message}");
        let json = serde_json::json!({ key: "one" }).to_string();
        refused(&data(&[(KEYS_ANNOTATION, &json)]));
    }
    assert!(Key::parse(&"k".repeat(253), KeyForm::Data).is_ok());
}

#[test]
fn one_bad_entry_voids_the_whole_keys_annotation() {
    for json in [
        r#"{"a":"one","b":"Two"}"#,
        r#"{"a":"one","b":""}"#,
        r#"{"a":"one","b c":"two"}"#,
        r#"{"a":"one","/b":"two"}"#,
        r#"{"a":"one","b":2}"#,
        r#"{"a":"one","b":null}"#,
        r#"{"a":"one","b":["two"]}"#,
    ] {
        let message = refused(&data(&[(KEYS_ANNOTATION, json)]));
        assert!(message.contains("attaches nothing"), "{message}");
    }
}

#[test]
fn a_key_named_twice_voids_the_whole_keys_annotation_even_with_the_same_lease() {
    for json in
        [r#"{"a":"one","b":"x","a":"two"}"#, r#"{"a":"one","a":"one"}"#, r#"{"a":"one","\u0061":"one"}"#]
    {
        let message = refused(&data(&[(KEYS_ANNOTATION, json)]));
        assert!(message.contains(r#"names the key "a" twice"#), "{message}");
    }
}

#[test]
fn what_is_no_json_object_attaches_nothing() {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for json in [
        "",
        " ",
        "a",
        "[]",
        "null",
        "1",
        r#""a""#,
        "{",
        r#"{"a":"one"} x"#,
        r#"{"a":"one",}"#,
        "{'a':'b'}",
        &deep,
    ] {
        let message = refused(&data(&[(KEYS_ANNOTATION, json)]));
        assert!(message.contains(r#"{"KEY": "session-42"}"#), "{message}");
    }
    assert!(refused(&data(&[(KEYS_ANNOTATION, "{}")])).contains("names no key"));
}

#[test]
fn a_void_keys_annotation_leaves_the_others_alone() {
    let attachments =
        data(&[("key.lessor.dev/a", "one"), ("lessor.dev/lease", "two"), (KEYS_ANNOTATION, "oops")]);
    assert_eq!(keys(&attachments), [("a", "one")]);
    assert!(attachments.whole.is_some());
    assert_eq!(attachments.problems.len(), 1);
}

#[test]
fn keys_of_other_kinds_are_json_pointers() {
    let attachments = pointers(r#"{"/spec/suspend":"one","/metadata/labels/team":"two"}"#);
    assert_eq!(keys(&attachments), [("/metadata/labels/team", "two"), ("/spec/suspend", "one")]);
    assert!(refused(&pointers(r#"{"suspend":"one"}"#)).contains("/spec/suspend"));
    let by_name = Attachments::parse(&map(&[("key.lessor.dev/suspend", "one")]), KeyForm::Pointer);
    assert!(refused(&by_name).contains(r#"lessor.dev/keys: '{"/spec/suspend": "session-42"}'"#));
}

#[test]
fn pointers_inside_one_another_are_void_both() {
    let message = refused(&pointers(r#"{"/spec/a":"one","/spec/a-b":"one","/spec/a/b":"two"}"#));
    assert!(message.contains(r#""/spec/a/b" lies inside "/spec/a""#), "{message}");
    assert_eq!(pointers(r#"{"/spec/a":"one","/spec/a-b":"one","/spec/ab":"two"}"#).keys.len(), 3);
}

#[test]
fn removing_a_key_removes_its_attachment_in_both_forms_and_no_other() {
    let before = map(&[
        ("app", "web"),
        ("lessor.dev/lease", "whole"),
        ("key.lessor.dev/a", "one"),
        ("key.lessor.dev/b", "two"),
        ("lessor.dev/keys", r#"{ "c": "one", "a": "one", ".d": "two" }"#),
    ]);
    let gone = [data_key("a"), data_key("elsewhere")].into();
    let changes = annotations_after(&before, KeyForm::Data, &gone);
    let expected = [
        ("key.lessor.dev/a".to_owned(), None),
        ("lessor.dev/keys".to_owned(), Some(r#"{".d":"two","c":"one"}"#.to_owned())),
    ];
    assert_eq!(changes, expected.into());
}

#[test]
fn the_last_key_takes_the_keys_annotation_with_it() {
    let before = map(&[("lessor.dev/keys", r#"{"a":"one"}"#)]);
    let gone = [data_key("a")].into();
    assert_eq!(
        annotations_after(&before, KeyForm::Data, &gone),
        [("lessor.dev/keys".to_owned(), None)].into()
    );
}

#[test]
fn a_key_that_is_void_keeps_its_annotations() {
    let before = map(&[("key.lessor.dev/a", "one"), ("lessor.dev/keys", r#"{"a":"two","b":"two"}"#)]);
    let gone = [data_key("a")].into();
    assert!(annotations_after(&before, KeyForm::Data, &gone).is_empty());
    let before = map(&[("lessor.dev/keys", r#"{"a":"two","b":"TWO"}"#)]);
    assert!(annotations_after(&before, KeyForm::Data, &gone).is_empty());
}

/// Names of leases, most of them good.
fn lease_name() -> impl Strategy<Value = String> {
    prop_oneof![12 => "[a-c]", 2 => "[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", 1 => any::<String>()]
}

/// Keys of both forms and of none, few enough to collide.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[a-d]", 4 => "(/a[a-]?){1,2}", 1 => "[a-c.]{1,3}", 1 => "(/[a-b~01-]{1,2}){1,3}", 1 => any::<String>()]
}

/// Members of a JSON object, often all of one form.
fn entries() -> impl Strategy<Value = Vec<(String, String)>> {
    prop_oneof![
        prop::collection::vec(("[a-f]", "[a-c]"), 1..5),
        prop::collection::vec(("(/a[a-]?){1,2}", "[a-c]"), 1..4),
        prop::collection::vec((key(), lease_name()), 0..6),
    ]
}

/// JSON with its members in order, and any of them as often as it comes.
fn json(entries: &[(String, String)]) -> String {
    let members: Vec<String> = entries
        .iter()
        .map(|(key, name)| format!("{}: {}", serde_json::json!(key), serde_json::json!(name)))
        .collect();
    format!("{{{}}}", members.join(", "))
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let keys_value = prop_oneof![5 => entries().prop_map(|entries| json(&entries)), 1 => any::<String>()];
    (
        prop::option::of(lease_name()),
        prop::collection::btree_map(key().prop_map(|key| format!("{KEY_PREFIX}{key}")), lease_name(), 0..5),
        prop::option::of(keys_value),
        prop::collection::btree_map(any::<String>(), any::<String>(), 0..3),
    )
        .prop_map(|(whole, keys, json, foreign)| {
            let whole = whole.map(|name| (LEASE_ANNOTATION.to_owned(), name));
            let json = json.map(|json| (KEYS_ANNOTATION.to_owned(), json));
            foreign.into_iter().chain(whole).chain(keys).chain(json).collect()
        })
}

fn form() -> impl Strategy<Value = KeyForm> {
    prop_oneof![Just(KeyForm::Data), Just(KeyForm::Pointer)]
}

proptest! {
    #[test]
    fn whatever_the_annotations_say_each_is_understood_or_reported(annotations in annotations(), form in form()) {
        let attachments = Attachments::parse(&annotations, form);
        for problem in &attachments.problems {
            // What fits into an Event.
            prop_assert!(problem.to_string().len() <= 1024, "{problem}");
        }
        let reports = |text: &str| attachments.problems.iter().any(|problem| problem.to_string().contains(text));
        if let Some(name) = annotations.get(LEASE_ANNOTATION) {
            prop_assert!(attachments.whole.as_ref().is_some_and(|whole| whole.as_str() == name) || reports(LEASE_ANNOTATION));
        }
        for (_, key, name) in key_annotations(&annotations) {
            let attached = attachments.keys.get(key).is_some_and(|lease| lease.as_str() == name);
            prop_assert!(attached || !attachments.problems.is_empty());
        }
        for (key, lease) in &attachments.keys {
            let by_own = annotations.get(&format!("{KEY_PREFIX}{key}")).is_none_or(|name| name == lease.as_str());
            prop_assert!(by_own, "{key} goes with {lease} against its own annotation");
        }
    }

    #[test]
    fn the_keys_annotation_is_understood_wholly_or_not_at_all(entries in entries(), form in form()) {
        let annotations = map(&[(KEYS_ANNOTATION, &json(&entries))]);
        let attachments = Attachments::parse(&annotations, form);
        if attachments.problems.is_empty() {
            let mut expected: Vec<_> = entries.iter().map(|(key, name)| (key.as_str(), name.as_str())).collect();
            expected.sort_unstable();
            prop_assert_eq!(keys(&attachments), expected);
        } else {
            prop_assert!(attachments.keys.is_empty());
        }
    }

    #[test]
    fn what_is_written_is_read_back(entries in entries(), form in form()) {
        let attached: BTreeMap<Key, LeaseName> = entries
            .iter()
            .filter_map(|(key, name)| Some((Key::parse(key, form).ok()?, LeaseName::parse(name).ok()?)))
            .collect();
        let nested = form == KeyForm::Pointer && refuse_nested(&attached).is_err();
        if !attached.is_empty() && !nested {
            prop_assert_eq!(parse_keys(&keys_to_json(&attached), form), Ok(attached));
        }
    }

    #[test]
    fn removing_keys_leaves_exactly_the_other_attachments(
        mut annotations in annotations(),
        form in form(),
        choice in any::<[bool; 8]>(),
    ) {
        let before = Attachments::parse(&annotations, form);
        let (gone, kept): (Vec<_>, Vec<_>) =
            before.keys.clone().into_iter().zip(choice.into_iter().cycle()).partition(|(_, goes)| *goes);
        let gone: BTreeSet<Key> = gone.into_iter().map(|((key, _), _)| key).collect();
        for (name, value) in annotations_after(&annotations, form, &gone) {
            match value {
                Some(value) => annotations.insert(name, value),
                None => annotations.remove(&name),
            };
        }
        let after = Attachments::parse(&annotations, form);
        prop_assert_eq!(after.keys, kept.into_iter().map(|(attachment, _)| attachment).collect());
        prop_assert_eq!(after.whole, before.whole);
        prop_assert_eq!(after.problems, before.problems);
    }
}
