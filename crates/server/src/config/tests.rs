//! What is refused and how it is told, what beats what, and that no text does harm.

use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;

use super::example::example;
use super::*;

/// Loads a configuration of one file, with an empty environment.
fn load_text(text: &str) -> Result<Loaded, Problems> {
    load_with(text, &Overrides::default(), &Environment::default())
}

fn load_with(
    text: &str,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Loaded, Problems> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    load(Some(&path), overrides, environment)
}

/// The problems of a configuration as a person reads them, without the folder's name.
fn problems_of(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let environment = Environment::new([("SECRET", "hunter2")]);
    let problems = load(Some(&path), &Overrides::default(), &environment).unwrap_err();
    format!("{problems}\n").replace(&format!("{}/", folder.path().display()), "")
}

/// Holds a file of cases (`>>> name`, configuration, `<<<`, problems) against what is told. With
/// `WAYHOLD_UPDATE_GOLDEN=1` the file is written instead, to be read before it is committed.
fn hold_golden(file: &str, golden: &str) {
    let mut actual = String::new();
    for case in golden.split(">>> ").skip(1) {
        let (input, _) = case.split_once("<<<\n").unwrap();
        let (_, text) = input.split_once('\n').unwrap();
        write!(actual, ">>> {input}<<<\n{}\n", problems_of(text)).unwrap();
    }
    if std::env::var_os("WAYHOLD_UPDATE_GOLDEN").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config");
        std::fs::write(folder.join(file), actual).unwrap();
    } else {
        assert_eq!(actual, golden, "{file}");
    }
}

#[test]
fn every_refusal_names_file_line_key_and_what_was_expected() {
    hold_golden("refused.txt", include_str!("refused.txt"));
}

#[cfg(feature = "kafka")]
#[test]
fn refusals_of_kafka_do_too() {
    hold_golden("refused-kafka.txt", include_str!("refused-kafka.txt"));
}

#[cfg(not(feature = "kafka"))]
#[test]
fn a_binary_without_kafka_says_how_to_get_it() {
    let text = "[destinations.a]\nkind = \"kafka\"\n[[routes]]\nto = [\"a\"]\n";
    assert!(problems_of(text).contains("cargo build --release --features kafka"));
}

#[test]
fn as_many_destinations_as_there_may_be_are_read_and_one_more_is_one_problem() {
    let crowd = |count: usize| {
        let one = |number| {
            format!(
                "[destinations.d{number}]\nkind = \"null\"\n[[routes]]\nwhen = 'key == \"{number}\"'\n\
                 to = [\"d{number}\"]\n"
            )
        };
        (0..count).map(one).collect::<String>()
    };
    let read = load_text(&crowd(1024)).unwrap().config;
    assert_eq!((read.destinations.len(), read.routes.len()), (1024, 1024));
    let told = problems_of(&crowd(1030));
    let lines: Vec<_> = told.lines().collect();
    let [destinations, routes] = lines.as_slice() else {
        panic!("{told}");
    };
    assert!(destinations.ends_with("destinations: expected at most 1024 destinations"));
    assert!(routes.ends_with("routes: expected at most 1024, not 1030"));
}

#[test]
fn no_problem_shows_a_secret() {
    for golden in [
        include_str!("refused.txt"),
        include_str!("refused-kafka.txt"),
    ] {
        for case in golden.split(">>> ").skip(1) {
            let (_, told) = case.split_once("<<<\n").unwrap();
            // A path that cannot be read is named, whatever it is called.
            assert!(
                !told.replace("absent/hunter2", "").contains("hunter2"),
                "{told}"
            );
        }
    }
}

#[test]
fn without_a_file_events_go_to_one_file_in_the_data_directory() {
    let loaded = load(None, &Overrides::default(), &Environment::default()).unwrap();
    let config = &loaded.config;
    assert_eq!(config.data, Path::new("./data"));
    assert_eq!(config.listen[0].to_string(), "127.0.0.1:8700");
    let [destination] = config.destinations.as_slice() else {
        panic!("{:?}", config.destinations);
    };
    assert_eq!(destination.name.as_str(), "delivered");
    let SinkConfig::File(file) = &destination.sink else {
        panic!("{destination:?}");
    };
    assert_eq!(file.path, Path::new("./data/delivered.ndjson"));
    assert_eq!(config.routes.len(), 1);
    assert!(
        loaded
            .values
            .iter()
            .all(|value| value.origin == Origin::Default)
    );

    let overrides = Overrides {
        data: Some("/d".into()),
        ..Overrides::default()
    };
    let config = load(None, &overrides, &Environment::default())
        .unwrap()
        .config;
    let SinkConfig::File(file) = &config.destinations[0].sink else {
        panic!("{:?}", config.destinations);
    };
    assert_eq!(file.path, Path::new("/d/delivered.ndjson"));
}

#[test]
fn flags_beat_environment_beats_file_beats_default() {
    let file = "listen = [\"127.0.0.1:1\"]\n[limits]\nheaders = 1\n";
    let environment = [
        ("WAYHOLD__LISTEN", "127.0.0.1:2"),
        ("WAYHOLD__LIMITS__HEADERS", "2"),
    ];
    let flag = || Overrides {
        listen: vec!["127.0.0.1:3".parse().unwrap()],
        ..Overrides::default()
    };
    for (text, variables, overrides, listen, listen_from, headers, headers_from) in [
        (
            "",
            0,
            Overrides::default(),
            "127.0.0.1:8700",
            "default",
            100,
            "default",
        ),
        (
            file,
            0,
            Overrides::default(),
            "127.0.0.1:1",
            "wayhold.toml:1",
            1,
            "wayhold.toml:3",
        ),
        (
            file,
            2,
            Overrides::default(),
            "127.0.0.1:2",
            "environment WAYHOLD__LISTEN",
            2,
            "environment WAYHOLD__LIMITS__HEADERS",
        ),
        (
            file,
            2,
            flag(),
            "127.0.0.1:3",
            "flag --listen",
            2,
            "environment WAYHOLD__LIMITS__HEADERS",
        ),
        (
            file,
            0,
            flag(),
            "127.0.0.1:3",
            "flag --listen",
            1,
            "wayhold.toml:3",
        ),
    ] {
        let environment = Environment::new(environment[..variables].iter().copied());
        let loaded = load_with(text, &overrides, &environment).unwrap();
        let origin_of = |key: &str| {
            let value = loaded.values.iter().find(|value| value.key == key).unwrap();
            value.origin.to_string()
        };
        assert_eq!(loaded.config.listen[0].to_string(), listen);
        assert_eq!(loaded.config.limits.headers, headers);
        assert!(origin_of("listen").ends_with(listen_from));
        assert!(origin_of("limits.headers").ends_with(headers_from));
    }
}

#[test]
fn the_environment_sets_lists_tables_and_whole_destinations() {
    let environment = Environment::new([
        ("WAYHOLD__LISTEN", r#"["127.0.0.1:1", "unix:/s"]"#),
        ("WAYHOLD__DESTINATIONS__WMS__KIND", "webhook"),
        ("WAYHOLD__DESTINATIONS__WMS__URL", r#"{ env = "HOOK" }"#),
        ("WAYHOLD__DESTINATIONS__WMS__RETRY__ATTEMPTS_MAX", "7"),
        ("HOOK", "https://example.com/secret"),
        ("WAYHOLD_SERVICE_HOST", "10.0.0.1"),
        ("WAYHOLD_PORT", "tcp://10.0.0.1:8700"),
    ]);
    let loaded = load_with(
        "[[routes]]\nto = [\"wms\"]\n",
        &Overrides::default(),
        &environment,
    );
    let config = loaded.unwrap().config;
    assert_eq!(config.listen.len(), 2);
    let wms = config.destination("wms").unwrap();
    assert_eq!(wms.delivery.retry.patience.attempts_max, Some(7));
    let SinkConfig::Webhook(webhook) = &wms.sink else {
        panic!("{wms:?}");
    };
    assert_eq!(webhook.url.path(), "/secret");
}

#[test]
fn a_wrong_variable_is_named_like_a_wrong_line() {
    for (name, value, told) in [
        (
            "WAYHOLD__LIMITS__HEADERS",
            "many",
            "environment WAYHOLD__LIMITS__HEADERS: limits.headers: expected a whole number",
        ),
        (
            "WAYHOLD__LIMITS",
            "5",
            "environment WAYHOLD__LIMITS: limits: expected a table, not text",
        ),
        (
            "WAYHOLD__DATA__X",
            "5",
            "environment WAYHOLD__DATA__X: data: expected a text, not a table",
        ),
    ] {
        let environment = Environment::new([(name, value)]);
        let problems = load_with("", &Overrides::default(), &environment).unwrap_err();
        assert_eq!(problems.to_string(), told);
    }
}

#[test]
fn included_files_grow_into_one() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "a.toml",
        "include = [\"b.toml\"]\n[destinations.a]\nkind = \"null\"\n[[routes]]\nto = [\"a\"]\n",
    );
    write(
        "b.toml",
        "[destinations.b]\nkind = \"null\"\n[[routes]]\nto = [\"b\"]\n",
    );
    let path = folder.path().join("a.toml");
    let read = || load(Some(&path), &Overrides::default(), &Environment::default());
    let config = read().unwrap().config;
    assert_eq!(config.destinations.len(), 2);
    let to: Vec<_> = config
        .routes
        .iter()
        .map(|route| route.to[0].as_str())
        .collect();
    assert_eq!(to, ["a", "b"]);

    write(
        "b.toml",
        "include = [\"c.toml\"]\n[destinations.a]\nkind = \"file\"\npath = \"x\"\n",
    );
    let told = read().unwrap_err().to_string();
    assert!(told.contains("b.toml:1: include: expected only in the file that serve is given"));
    assert!(
        told.contains("b.toml:3: destinations.a.kind: expected it once, but "),
        "{told}"
    );
    assert!(told.contains("a.toml:3 sets it too"), "{told}");
}

#[test]
fn paths_are_relative_to_their_file_and_secrets_come_by_reference() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "hunter2\n").unwrap();
    let text = r#"
        [destinations.a]
        kind = "webhook"
        url = "https://example.com/hunter2"
        headers = { authorization = { file = "token" }, x-b = { env = "SECRET" }, x-c = "hunter2" }
        [destinations.b]
        kind = "file"
        path = "out/b.ndjson"
        [[routes]]
        to = ["a", "b"]
    "#;
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let environment = Environment::new([("SECRET", "hunter2")]);
    let loaded = load(Some(&path), &Overrides::default(), &environment).unwrap();
    let SinkConfig::Webhook(webhook) = &loaded.config.destinations[0].sink else {
        panic!("expected the webhook first");
    };
    for name in ["authorization", "x-b", "x-c"] {
        assert_eq!(webhook.headers[name], "hunter2");
        assert!(webhook.headers[name].is_sensitive());
    }
    let SinkConfig::File(file) = &loaded.config.destinations[1].sink else {
        panic!("expected the file second");
    };
    assert_eq!(file.path, folder.path().join("out/b.ndjson"));
    assert!(!format!("{:?}", loaded.values).contains("hunter2"));
    assert!(!format!("{:?}", webhook.headers).contains("hunter2"));
}

#[test]
fn the_example_is_valid_with_and_without_what_is_off_by_default() {
    let loaded = load_text(&example()).unwrap();
    let defaults = load(None, &Overrides::default(), &Environment::default()).unwrap();
    for value in &defaults.values {
        // The example names its own data directory and destinations.
        if ["data", "destinations", "routes"]
            .iter()
            .any(|own| value.key.starts_with(own))
        {
            continue;
        }
        let shown = loaded.values.iter().find(|shown| shown.key == value.key);
        let shown = shown.unwrap_or_else(|| panic!("the example lacks {}", value.key));
        assert_eq!(shown.value, value.value, "{}", value.key);
        assert_ne!(
            shown.origin,
            Origin::Default,
            "the example lacks {}",
            value.key
        );
    }

    let mut all = String::new();
    for line in example().lines() {
        let line = line
            .strip_prefix('#')
            .filter(|rest| !rest.starts_with(' '))
            .unwrap_or(line);
        if !line.starts_with("include") {
            writeln!(all, "{line}").unwrap();
        }
    }
    let environment = Environment::new([
        ("WMS_AUTHORIZATION", "x"),
        ("WMS_SIGNING_KEY", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
        (
            "WMS_SIGNING_KEY_NEXT",
            "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        ),
        (
            "WMS_CA",
            include_str!("../sink/webhook/client/certificates/authority.pem"),
        ),
        ("ERP_TOKEN", "x"),
        ("CENTRE_TOKEN", "x"),
        ("KAFKA_PASSWORD", "x"),
        ("NOTARY_AUTHORIZATION", "x"),
        ("LEDGER_ACCESS_KEY_ID", "x"),
        ("LEDGER_SECRET_ACCESS_KEY", "x"),
        ("ERP_DATABASE_URL", "postgres://wayhold@127.0.0.1/erp"),
    ]);
    load_with(&all, &Overrides::default(), &environment).unwrap();
}

#[test]
fn the_examples_of_destinations_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/destinations");
    let environment = Environment::new([
        ("ERPNEXT_AUTHORIZATION", "x"),
        ("BC_CLIENT_SECRET", "x"),
        ("CENTRE_TOKEN", "x"),
    ]);
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        load(Some(&path), &Overrides::default(), &environment)
            .unwrap_or_else(|problems| panic!("{problems}"));
        found += 1;
    }
    assert!(found > 0);
}

#[test]
fn hostile_texts_become_problems() {
    let deep = format!("x = {}", "[".repeat(100_000));
    let deep_key = format!("{}x = 1", "a.".repeat(100_000));
    let deep_condition = format!("when = '{}true{}'", "(".repeat(900), ")".repeat(900));
    let negations = format!("when = '{}true'", "!".repeat(2_000));
    let sum = format!("when = 'subject == {}\"\"'", "\"\" + ".repeat(300));
    let route = |when: &str| {
        format!("[destinations.a]\nkind = \"null\"\n[[routes]]\nto = [\"a\"]\n{when}\n")
    };
    for text in [
        deep,
        deep_key,
        route(&deep_condition),
        route(&sum),
        route("when = \"\\u0000\""),
        route("when = '\u{202e}type == \"x\"'"),
        "x".repeat(2 * 1024 * 1024),
        "\u{feff}\u{0}".to_owned(),
        "[limits]\nheaders = 0xffffffffffffffffffff".to_owned(),
        "\"\u{202e}\" = 1".to_owned(),
        "routes = 5".to_owned(),
        "routes = [5]".to_owned(),
        "destinations = []".to_owned(),
        "destinations = { a = 5 }\nroutes = [{ to = [\"a\"] }]".to_owned(),
        "include = 5".to_owned(),
        "include = [\"wayhold.toml\", \"wayhold.toml\"]".to_owned(),
    ] {
        let problems = load_text(&text).unwrap_err();
        assert!(!problems.0.is_empty());
    }
    // Only long, not wrong.
    load_text(&route(&negations)).unwrap();
}

#[test]
fn bytes_that_are_not_utf8_become_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, b"data = \"\xff\"").unwrap();
    for path in [
        path.as_path(),
        folder.path(),
        Path::new("/absent/wayhold.toml"),
    ] {
        load(Some(path), &Overrides::default(), &Environment::default()).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_does_harm(text in "(?s).{0,200}") {
        drop(load_text(&text));
    }

    #[test]
    fn no_value_does_harm(
        key in prop::sample::select(vec![
            "data", "listen", "ops_listen", "keys", "routes", "limits", "limits.body_bytes",
            "store.window", "destinations.a", "destinations.a.url", "destinations.a.headers",
            "network.allow", "log.level", "include",
        ]),
        value in "([0-9-]{1,25}|\"[a-z{}/:. \u{e9}]{0,12}\"|\\[[0-9\", a]{0,8}\\]|true|1e9|[{]a=1[}])",
    ) {
        drop(load_text(&format!("{key} = {value}\n")));
    }
}

#[test]
fn the_number_of_shards_follows_the_cores_and_the_space_to_keep_free_follows_it() {
    let text = "[destinations.a]\nkind = \"null\"\n[[routes]]\nto = [\"a\"]\n";
    let store = |text: &str, cores: usize| {
        let environment = Environment::default().with_cores(cores);
        let config = load_with(text, &Overrides::default(), &environment);
        let config = config.unwrap().config;
        (
            config.store.shards,
            config.store.min_free_bytes(),
            config.store.min_free,
            config.shards_chosen,
        )
    };
    assert_eq!(store(text, 2), (1, 512 << 20, None, false));
    assert_eq!(store(text, 16), (4, 544 << 20, None, false));
    let chosen = format!("[store]\nshards = 8\n{text}");
    assert_eq!(store(&chosen, 2), (8, 1056 << 20, None, true));
    // What was chosen stays, whatever the number of shards becomes.
    let chosen = format!("[store]\nmin_free = \"900 MiB\"\n{text}");
    assert_eq!(store(&chosen, 2), (1, 900 << 20, Some(900 << 20), false));
    for (shards, told) in [
        ("0", "between 1 and 64, not 0"),
        ("65", "between 1 and 64, not 65"),
    ] {
        let problems = problems_of(&format!("[store]\nshards = {shards}\n{text}"));
        assert!(
            problems.contains("wayhold.toml:2: store.shards: ") && problems.contains(told),
            "{problems}"
        );
    }
}

#[test]
fn the_documentation_tells_every_key_and_its_default() {
    let page = include_str!("../../../../docs/configuration.md");
    let documented: std::collections::BTreeMap<_, _> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let key = cells.next()?.trim_end_matches('`');
            Some((key.to_owned(), cells.next()?.trim_matches('`').to_owned()))
        })
        .collect();
    let text = "[destinations.NAME]\nkind = \"file\"\npath = \"x\"\n[[routes]]\nto = [\"name\"]\n"
        .replace("NAME", "name");
    for value in load_text(&text).unwrap().values {
        if value.origin == Origin::Default {
            let key = value
                .key
                .replace("destinations.name.", "destinations.NAME.");
            assert_eq!(
                documented.get(&key),
                Some(&value.value.to_string()),
                "{key}"
            );
        }
    }
    for value in load_text(&example()).unwrap().values {
        let mut parts = value.key.splitn(3, '.');
        let key = match (parts.next(), parts.next(), parts.next()) {
            (Some("destinations"), Some(_), Some(rest)) => {
                let rest = rest
                    .split_once('.')
                    .filter(|(table, _)| matches!(*table, "headers" | "properties" | "on"));
                let own = value.key.splitn(3, '.').nth(2).unwrap();
                format!("destinations.NAME.{}", rest.map_or(own, |(table, _)| table))
            }
            _ => match value.key.split_once("].") {
                Some((_, own)) => own.to_owned(),
                None => value.key.clone(),
            },
        };
        assert!(documented.contains_key(&key), "{key}");
    }
}
