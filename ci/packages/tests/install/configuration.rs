//! Configuration files: what a second installation and the end do to them.

use std::fs;

use packages::Run;

use crate::sources::Image;

const MANIFEST: &str = "/usr/local/share/libvma/manifest";
const FILES: [&str; 3] =
    ["/etc/libvma.conf", "/etc/vma/vmad.toml", "/etc/security/limits.d/30-libvma-limits.conf"];

// covers: INS-19
#[test]
fn an_edited_file_stays_and_the_new_one_comes_beside_it() {
    let image = Image::empty();
    image.install(&[]).succeeds();
    let new = FILES.map(|file| image.read(file));
    edit_all(&image);
    // However often.
    for _ in 0..2 {
        let said = image.install(&[]).succeeds();
        for (file, new) in FILES.iter().zip(&new) {
            let path = image.path(file);
            let path = path.display();
            let line = format!("{path} was edited and stays; the new one is {path}.new");
            assert!(said.contains(&line), "{said}");
            assert_eq!(image.read(file), "# mine\n");
            assert_eq!(&image.read(&format!("{file}.new")), new);
        }
    }

    let said = image.install(&["--uninstall"]).succeeds();
    for file in FILES {
        assert!(said.contains(&format!("{} was edited and stays", image.path(file).display())));
        assert_eq!(image.read(file), "# mine\n");
        assert!(!image.path(&format!("{file}.new")).exists());
    }
}

// covers: INS-20
#[test]
fn a_file_that_nobody_edited_is_replaced() {
    let image = Image::empty();
    image.install(&[]).succeeds();
    let new = FILES.map(|file| image.read(file));
    // As if another version had installed other ones.
    let mut manifest = image.read(MANIFEST);
    for file in FILES {
        let ours = sum(&image, file);
        let old = format!("# of an older version\n{}", image.read(file));
        fs::write(image.path(file), old).unwrap();
        let line = |sum: &str| format!("configuration {sum} {file}\n");
        assert!(manifest.contains(&line(&ours)), "{manifest}");
        manifest = manifest.replace(&line(&ours), &line(&sum(&image, file)));
    }
    fs::write(image.path(MANIFEST), manifest).unwrap();

    image.install(&[]).succeeds();
    for (file, new) in FILES.iter().zip(&new) {
        assert_eq!(&image.read(file), new);
        assert!(!image.path(&format!("{file}.new")).exists());
    }
}

// covers: INS-21
#[test]
fn an_edit_that_equals_the_new_file_is_no_edit() {
    let image = Image::empty();
    image.install(&[]).succeeds();
    let new = FILES.map(|file| image.read(file));
    edit_all(&image);
    image.install(&[]).succeeds();
    for (file, new) in FILES.iter().zip(&new) {
        fs::write(image.path(file), new).unwrap();
    }
    let said = image.install(&[]).output_of_success();
    assert!(!said.contains("edited"), "{said}");
    assert!(FILES.iter().all(|file| !image.path(&format!("{file}.new")).exists()));
    image.install(&["--uninstall"]).succeeds();
    assert!(FILES.iter().all(|file| !image.path(file).exists()));
}

// covers: INS-19
#[test]
fn a_file_from_before_the_first_installation_is_not_touched() {
    let image = Image::empty();
    fs::create_dir(image.path("/etc")).unwrap();
    fs::write(image.path("/etc/libvma.conf"), "# from a package\n").unwrap();
    image.install(&[]).succeeds();
    assert_eq!(image.read("/etc/libvma.conf"), "# from a package\n");
    assert!(image.path("/etc/libvma.conf.new").exists());
    image.install(&["--uninstall"]).succeeds();
    assert_eq!(image.read("/etc/libvma.conf"), "# from a package\n");
}

#[test]
fn a_removed_file_comes_back() {
    let image = Image::empty();
    image.install(&[]).succeeds();
    fs::remove_file(image.path("/etc/libvma.conf")).unwrap();
    image.install(&[]).succeeds();
    assert!(image.path("/etc/libvma.conf").exists());
}

fn edit_all(image: &Image) {
    for file in FILES {
        fs::write(image.path(file), "# mine\n").unwrap();
    }
}

fn sum(image: &Image, file: &str) -> String {
    let said = std::process::Command::new("sha256sum").arg(image.path(file)).succeeds();
    said.split(' ').next().expect("a sum").to_owned()
}
