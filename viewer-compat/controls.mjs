// Profiles made by hand: some that the viewer must show, some that it must reject.

const FRAMES = [
  "[root]",
  "0x5010: <alloc::alloc::Global as core::alloc::Allocator>::allocate (alloc/src/alloc.rs:429:14)",
  "0x5020: app::grow (app/src/tree.rs:7:9)",
  "0x5030: app::main (app/src/main.rs:20:5)",
  "0x7f0123456789: libcuda.so.550.54.14+0x1030 (???:0:0)",
];

const POINTS = [
  { tb: 3_000, tbk: 3, tl: 40, mb: 2_000, mbk: 2, gb: 2_000, gbk: 2, eb: 0, ebk: 0, fs: [1, 2, 3] },
  { tb: 16, tbk: 4, tl: 4, mb: 8, mbk: 2, gb: 8, gbk: 2, eb: 4, ebk: 1, fs: [1, 3] },
  { tb: 500, tbk: 1, tl: 90, mb: 500, mbk: 1, gb: 500, gbk: 1, eb: 500, ebk: 1, fs: [4] },
];

// A heap profile of three program points.
export function heapProfile() {
  return structuredClone({
    dhatFileVersion: 2,
    mode: "rust-heap",
    verb: "Allocated",
    bklt: true,
    bkacc: false,
    tu: "µs",
    Mtu: "s",
    tuth: 10,
    cmd: "target/release/app --name \"größe\" <in >out",
    pid: 4242,
    tg: 1_500,
    te: 20_100,
    pps: POINTS,
    ftbl: FRAMES,
    modules: [
      { path: "/opt/app", build_id: "0abc", start: "0x5000", end: "0x9000", bias: "0x4000" },
    ],
  });
}

// An ad hoc profile of two program points.
export function adHocProfile() {
  return structuredClone({
    dhatFileVersion: 2,
    mode: "rust-ad-hoc",
    verb: "Allocated",
    bklt: false,
    bkacc: false,
    bu: "unit",
    bsu: "units",
    bksu: "events",
    tu: "µs",
    Mtu: "s",
    cmd: "app",
    pid: 7,
    te: 141,
    pps: [
      { tb: 100, tbk: 1, fs: [2, 3] },
      { tb: 41, tbk: 10, fs: [3] },
    ],
    ftbl: FRAMES,
    modules: [],
  });
}

function changed(change) {
  const profile = heapProfile();
  change(profile);
  return profile;
}

// Profiles that the viewer shows, by what is special about them.
export const ACCEPTED = {
  "heap": heapProfile(),
  "ad hoc": adHocProfile(),
  "one program point": changed((profile) => profile.pps.splice(1)),
  "no program point": changed((profile) => profile.pps.splice(0)),
  "a stack that another begins with": changed((profile) => (profile.pps[1].fs = [1, 2])),
};

// Profiles that the viewer rejects, by what is wrong with them: the profile and the error that a person reads.
export const REJECTED = {
  "two program points with equal frames": [
    changed((profile) => (profile.pps[1].fs = profile.pps[0].fs)),
    /repeated location/,
  ],
  "two program points without frames": [
    changed((profile) => profile.pps.forEach((pp) => (pp.fs = []))),
    /repeated location/,
  ],
  "a wrong version": [
    changed((profile) => (profile.dhatFileVersion = 3)),
    /version number 3, expected version number 2/,
  ],
  "no list of program points": [changed((profile) => delete profile.pps), /missing a field: pps/],
  "no frame table": [changed((profile) => delete profile.ftbl), /missing a field: ftbl/],
  "no time of t-gmax": [changed((profile) => delete profile.tg), /missing a field: tg/],
  "no maximum in a point": [changed((profile) => delete profile.pps[2].mb), /missing a field: mb/],
  "no frames in a point": [changed((profile) => delete profile.pps[0].fs), /missing a field: fs/],
};

// Profiles that the viewer shows, but not rightly: the profile and what the judge must complain of.
export const MISSHOWN = {
  "a point without total lifetime": [
    changed((profile) => delete profile.pps[0].tl),
    /not a figure: .*NaN/,
  ],
  "a point without frames beside another": [
    changed((profile) => (profile.pps[1].fs = [])),
    /a node shows no frame/,
  ],
  "an index beyond the frame table": [
    changed((profile) => (profile.pps[0].fs = [1, 99])),
    /a frame that the profile does not have: undefined/,
  ],
};
