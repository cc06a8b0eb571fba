#pragma once

// LibTorch exports ProcessGroupGloo but ships none of Gloo's headers. These five declare just what
// the class's header names. Nothing here is ever constructed, called or derived from on our side:
// we only pass shared pointers through, so no layout is assumed.
