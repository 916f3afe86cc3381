// Follows a log's tiles with the library by which Go's own tools follow Go's checksum database, golang.org/x/mod/sumdb.
//
//	sumdb_client URL VKEY STATE
//
// Opens the checkpoint, proves that it extends the one in the file STATE, if there is one, holds every new entry against
// its tile and the signed root, keeps the checkpoint in STATE and prints the numbers of old and of new entries.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// tiles are those of the log at a URL, each read once. The checksum database has a tile's height in its paths, C2SP's
// tlog-tiles do not.
type tiles struct {
	url  string
	read map[tlog.Tile][]byte
}

func (t tiles) Height() int                     { return 8 }
func (t tiles) SaveTiles([]tlog.Tile, [][]byte) {}

func (t tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	var found [][]byte
	for _, tile := range wanted {
		if t.read[tile] == nil {
			t.read[tile] = get(t.url + "/" + strings.Replace(tile.Path(), "tile/8/", "tile/", 1))
		}
		found = append(found, t.read[tile])
	}
	return found, nil
}

func main() {
	url, state := os.Args[1], os.Args[3]
	verifier, err := note.NewVerifier(os.Args[2])
	must(err)
	signed := get(url + "/checkpoint")
	head := opened(signed, verifier)
	hashes := tlog.TileHashReader(head, tiles{url, map[tlog.Tile][]byte{}})
	var old tlog.Tree
	if kept, err := os.ReadFile(state); err == nil {
		old = opened(kept, verifier)
		proof, err := tlog.ProveTree(head.N, old.N, hashes)
		must(err)
		must(tlog.CheckTree(proof, head.N, head.Hash, old.N, old.Hash))
	}
	for n := old.N; n < head.N; {
		for _, entry := range bundle(url, n, head.N) {
			proof, err := tlog.ProveRecord(head.N, n, hashes)
			must(err)
			must(tlog.CheckRecord(proof, head.N, head.Hash, n, tlog.RecordHash(entry)))
			n++
		}
	}
	must(os.WriteFile(state, signed, 0o600))
	fmt.Println(old.N, head.N-old.N)
}

// opened is the tree that a signed checkpoint is about. tlog.ParseTree reads the first line of the checksum database only.
func opened(data []byte, verifier note.Verifier) tlog.Tree {
	read, err := note.Open(data, note.VerifierList(verifier))
	must(err)
	lines := strings.SplitN(read.Text, "\n", 2)
	tree, err := tlog.ParseTree([]byte("go.sum database tree\n" + lines[1]))
	must(err)
	return tree
}

// bundle has the entries from n on to the end of their bundle, in a log of size entries.
func bundle(url string, n, size int64) [][]byte {
	full := tlog.Tile{H: 8, L: 0, N: n / 256, W: 256}
	if left := size - 256*full.N; left < 256 {
		full.W = int(left)
	}
	data := get(url + "/" + strings.Replace(full.Path(), "tile/8/0/", "tile/entries/", 1))
	var entries [][]byte
	for len(data) > 0 {
		end := 2 + int(binary.BigEndian.Uint16(data))
		entries, data = append(entries, data[2:end]), data[end:]
	}
	return entries[n%256:]
}

func get(url string) []byte {
	answer, err := http.Get(url)
	must(err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		log.Fatalf("%s answers %s", url, answer.Status)
	}
	data, err := io.ReadAll(answer.Body)
	must(err)
	return data
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
